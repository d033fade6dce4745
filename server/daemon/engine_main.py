"""`python -m tasuki.server.daemon.engine_main FD`: an engine's process, started by its front.

FD: of a socket whose other end the front has; what to build comes first over it
(EngineProcess.launch). Not for people: a daemon starts it, and it does not outlive that daemon.
"""

import sys

from tasuki.utils.child_process import end_after, run_job

if __name__ == "__main__":
    end_after(run_job(sys.argv[1:]))
