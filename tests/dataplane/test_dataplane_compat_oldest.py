"""The tests of what touches vLLM, in the oldest vLLM that is supported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.stack.engine import OLDEST_VLLM, environment_with

TOUCHES_VLLM = re.compile(
    r"^(from|import) (vllm|dataplane\.(queue|scheduler|engine_view))\b", re.MULTILINE
)
RUN = """
import sys, pytest, vllm
assert vllm.__version__.startswith("0.31."), vllm.__version__
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.system
def test_what_touches_vllm_passes_in_the_oldest_one() -> None:
    files = [
        str(file)
        for file in Path(__file__).parent.glob("test_*.py")
        if TOUCHES_VLLM.search(file.read_text(encoding="utf-8"))
    ]
    assert any("contract" in file for file in files)
    done = subprocess.run(
        [sys.executable, "-c", RUN, "-q", "-m", "not system", "-p", "no:cacheprovider", *files],
        env={**os.environ, **environment_with(OLDEST_VLLM)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
