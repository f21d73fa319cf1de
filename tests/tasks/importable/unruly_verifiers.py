"""Verifiers that obey their text; imported by verifier processes."""

import os
import re
import subprocess
import sys
import time

from rlvr_jax.core.records import Verdict


def obey(example, text):
  """Judges a plain text; does what a text that is an order says."""
  order, _, rest = text.partition(" ")
  if order == "sleep":
    time.sleep(float(rest))
  elif order == "power":
    return Verdict(float(10**10**9 == 0), None, "computed")  # holds the interpreter lock
  elif order == "backtrack":
    return Verdict(float(bool(re.fullmatch(r"(a+)+b", "a" * 64))), None, "matched")
  elif order == "exit":
    os._exit(3)
  elif order == "system_exit":
    sys.exit(3)
  elif order == "fork":  # both go on to the end, so two would answer
    os.fork()
  elif order == "daemon":  # in a session of its own, and nobody's child
    line = [sys.executable, "-S", "-c", f"import time; time.sleep(1000)  # {rest}"]
    if os.fork() == 0:
      subprocess.Popen(line, start_new_session=True)
      os._exit(0)
    os.wait()
  elif order == "hung":
    subprocess.Popen(["sleep", rest], start_new_session=True)
    time.sleep(1000)
  elif order == "run":
    subprocess.run(["true"], check=True)
  elif order == "raise":
    raise KeyError(rest)
  elif order == "hog":
    return Verdict(float(len(bytearray(int(rest) * 2**20)) == 0), None, "allocated")
  elif order == "none":
    return None
  elif order == "nan":
    return Verdict(float("nan"), None, "nan")
  elif order == "pid":
    return Verdict(1.0, str(os.getpid()), "pid")
  elif order == "environment":
    return Verdict(1.0, os.environ.get(rest), "environment")
  elif order == "modules":
    return Verdict(1.0, " ".join(sorted({*sys.modules} & {*rest.split()})), "modules")
  return Verdict(float(text == example.answer), text, "same")
