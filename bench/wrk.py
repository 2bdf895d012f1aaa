"""The program that generates the load."""

import os
import shutil
import subprocess
import sys


def install_wrk() -> None:
    if shutil.which("wrk") is None and shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(["apt-get", "install", "-y", "-qq", "wrk"], check=False, stdout=subprocess.DEVNULL)
    if shutil.which("wrk") is None:
        sys.exit("The benchmark needs wrk to generate load. Install it: apt-get install wrk")
