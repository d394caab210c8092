"""`thinwire doctor` on a rank with something planted: python planted.py WHAT..."""

import os
import signal
import sys
import time

from thinwire.tools.cli import main
from thinwire.tools.doctor import answering, facts, links


def plant(what):
    if what == "version":
        facts.__version__ = "0.0.9"
    elif what == "clock":
        now = time.time
        answering.time.time = lambda: now() + 5.0
    elif what == "death":
        links.measure = lambda *_: os._exit(9)
    elif what == "stop":
        links.measure = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise ValueError(what)


if __name__ == "__main__":
    if os.environ["RANK"] == os.environ.get("PLANT_ON", "1"):
        for each in sys.argv[1].split(","):
            plant(each)
    main(["doctor", *sys.argv[2:]])
