"""`python -m tasuki.engine.parallel.rank_main FD`: a follower rank, started by its leader.

FD: number of a socket connected to the leader; the first message on it describes the rank's work.
Not for people: a node starts this program, and the program does not outlive the node.
"""

import sys

from tasuki.utils.child_process import run_job

if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1:]))
