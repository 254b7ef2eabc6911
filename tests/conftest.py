"""Settings that every test shares.

The variables are set before NumPy or PyTorch is imported, and the notebooks' kernels inherit them:
one thread gives the same rounding on every machine, and no test may ask a model hub for a file.
"""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A failure must come back on the next run, so the everyday profile draws the same inputs each time.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("everyday", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile("everyday")
