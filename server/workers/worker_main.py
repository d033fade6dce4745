"""`python -m tasuki.server.workers.worker_main FD`: a front worker's process, started by the node's
registry.

FD: the file descriptor of a socket to the registry. The registry first sends the worker's job (its
main function) over it. Only a daemon starts this module. The process does not outlive the daemon.
"""

import sys

from tasuki.utils.child_process import end_after, run_job

if __name__ == "__main__":
    end_after(run_job(sys.argv[1:]))
