"""Are there inf or nan where the reference has none?"""

from ulpscope.diagnose.detectors.asking import Answer, Detector, is_only_shown
from ulpscope.diagnose.flow.states import Birth, finite
from ulpscope.diagnose.overflow.asked_for import Ends, asked
from ulpscope.diagnose.places import place_of_birth
from ulpscope.records.enums import GRADIENT_ROLE
from ulpscope.records.evidence import Evidence, OperandOrigin, Overflow
from ulpscope.records.findings import FindingKind


class Overflowing(Detector):
    def ask(self, birth: Birth) -> Answer | None:
        if not self._overflows(birth.slot.values) or self._asked_for(birth):
            return None
        place, role = place_of_birth(self.evidence, birth), birth.slot.role
        shown = ("summed" if role == GRADIENT_ROLE else "given") if is_only_shown(birth, place) else None
        known = Evidence(operand=OperandOrigin(shown=shown))
        if birth.gap is not None:
            return Answer(FindingKind.OVERFLOW, place, known, unsaid=("dtype",))
        overflow = Overflow(extremes=self._extremes(birth.slot.values))
        return Answer(FindingKind.OVERFLOW, place, Evidence(operand=known.operand, overflow=overflow))

    def _overflows(self, row: int) -> bool:
        """Another number of -inf is another mask."""
        if not self.evidence.values.pattern[row]:
            return False
        reference, target = self.evidence.sides
        born = int(target.nan[row] + target.pos_inf[row]) > int(reference.nan[row] + reference.pos_inf[row])
        return born or (int(reference.not_finite()[row]) == 0 < int(target.not_finite()[row]))

    def _asked_for(self, birth: Birth) -> bool:
        """Whether an argument of a call that both runs make is inf or nan itself, as a limit that limits nothing is."""
        if birth.gap is not None or not birth.slot.makes:
            return False
        sides, row = self.evidence.sides, birth.slot.values
        more = (
            getattr(sides.target, name)[row] > getattr(sides.reference, name)[row]
            for name in ("nan", "pos_inf", "neg_inf")
        )
        calls, pair = self.evidence.calls, birth.slot.pair
        return asked(calls["op"][pair], calls["arguments"][pair]).cover(Ends(*map(bool, more)))

    def _extremes(self, row: int) -> tuple[float | None, float | None]:
        stats = [side.summaries for side in self.evidence.sides]
        largest = [max(abs(float(side.min[row])), abs(float(side.max[row]))) for side in stats]
        return finite(largest[0]), finite(largest[1])
