"""How often `ulpscope compare` names the right fault in runs of TensorFlow: captures, compares, prints the score.

    cd benchmarks && python -m zoo_tf                      the whole zoo, from summaries
    python -m zoo_tf --only 'lenet.*'                      some cases; patterns of FAMILY.NAME
    python -m zoo_tf --traces DIR                          keep traces and results in DIR; what is there is used again
    python -m zoo_tf --list                                what there is

Half of the faults run in float32, half on top of Keras' mixed_bfloat16 (sessions: bfloat16 by cast), always against the
float32 run; as graphs and eagerly. Exit code 1 below the bar: 95 % of the faults named, no finding on a clean pair.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from zoo.__main__ import Zoo, main
from zoo_tf.clean_pairs import CLEAN_PAIRS
from zoo_tf.faults import FAULTS

FAMILIES = Path(__file__).resolve().parent / "families"
ZOO = Zoo("python -m zoo_tf", __doc__, FAULTS, CLEAN_PAIRS, FAMILIES, "zoo_tf.prepared", measures=False)

if __name__ == "__main__":
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(main(ZOO))
