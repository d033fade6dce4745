"""`python -m tasuki.engine.parallel.rank_main FD`: a follower, started by its leader.

FD: a socket connected to the leader, and the job comes first over it. Not for people: a node starts
it, and it does not outlive the node.
"""

import sys

from tasuki.utils.child_process import run_job

if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1:]))
