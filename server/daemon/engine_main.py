"""`python -m tasuki.server.daemon.engine_main FD`: an engine's process, started by its front.

FD: the file descriptor of a socket to the front. The front first sends the process's job (its main
function) over it (EngineProcess.launch). Only a daemon starts this module. The process does not
outlive the daemon.
"""

import sys

from tasuki.utils.child_process import end_after, run_job

if __name__ == "__main__":
    end_after(run_job(sys.argv[1:]))
