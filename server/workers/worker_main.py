"""`python -m tasuki.server.workers.worker_main FD`: a front worker's process, started by the node's
registry.

FD: of a socket whose other end the registry has; the worker's job comes first over it. Not for
people: a daemon starts it, and it does not outlive that daemon.
"""

import sys

from tasuki.utils.child_process import end_after, run_job

if __name__ == "__main__":
    end_after(run_job(sys.argv[1:]))
