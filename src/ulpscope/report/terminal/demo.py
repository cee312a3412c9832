"""The words of `ulpscope demo`."""

from collections.abc import Sequence

INTRODUCTION = """\
A two-layer transformer is trained twice for three steps on this CPU. The
second run has a fault planted in it: one LayerNorm uses eps=0.01 where the
first uses eps=0.00001. Both runs are captured, without a change to the script."""

COMPARE_INTRODUCTION = """\
Every call of both runs is now on disk, with its inputs, outputs, gradients and
source line. Where did the target's numbers go wrong first?"""

SUSPECT_INTRODUCTION = """\
The call itself, by the command that the answer proposes:"""


def heading(text: str) -> str:
    """A paragraph that stands apart from the commands' own output."""
    return f"\n{text}"


def prompt(command: str) -> str:
    """A command as the user would type it."""
    return f"\n$ {command}"


def losses_text(reference: Sequence[str], target: Sequence[str]) -> str:
    """The losses of both runs beside each other."""
    rows = [("step", "reference", "target")]
    rows += [(str(step), *pair) for step, pair in enumerate(zip(reference, target, strict=True))]
    table = "\n".join(f"  {step:>4}  {left:>12}  {right:>12}" for step, left, right in rows)
    return heading(f"The losses alone hardly tell that something is wrong, and nothing about where:\n\n{table}")


def ending(directory: str, *, page: str, program: str | None) -> str:
    """Where to go from here; `program` is our own path where typing `ulpscope` would not find it."""
    lines = [
        f"To look at all of it, open this page in a browser: {page}",
        f"The script, both traces and the result stay in {directory}.",
        "Your own script is captured and compared the same way:",
        "",
        "  ulpscope run -o runs/ref -- python train.py",
        "  ulpscope run -o runs/target -- python train.py   # there, where the numbers differ",
        "  ulpscope compare runs/ref runs/target --out result   # and open result/report.html",
    ]
    if program is not None:
        lines += ["", "`ulpscope` is not on your PATH. It is here:", "", f"  {program}"]
    return heading("\n".join(lines))
