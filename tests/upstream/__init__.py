"""What "as published" means, in numbers: computed once from upstream code, kept as data, compared on every run.

Repositories and commits, which the tests name by these words:

* sr3: Janspiry/Image-Super-Resolution-via-Iterative-Refinement 01d27a7
* pointr: yuxumin/PoinTr 2e53e72
* fairseq: facebookresearch/fairseq 3d262bb
* informer: zhouhaoyi/Informer2020 29f2a73
* cab: Shark-NLP/CAB 0e49696
* paragen: bytedance/ParaGen 4e33a90, skyformer: pkuzengqi/Skyformer 1a677cb

Inputs come from seeds, by functions here that use NumPy's generator; outputs are in the files beside the tests.
"""

import functools
from typing import Any

from tests.cab.config.test_compose_paper import composed


@functools.cache
def paper(task: str, dataset: str, backbone: str) -> dict[str, Any]:
    """Return the configuration of a cell in preset `paper`."""
    return composed(task, dataset, backbone, "paper")
