"""What `ulpscope compare` says, in English. words_zh has the same keys with the same parts."""

from ulpscope.report.words.language import Phrases

_PLACES = {
    "sentence": "{place}: {body}.",
    "place.call": "{call}",
    "place.call_in": "{call} in {module}",
    "place.module": "{module}",
    "place.nowhere": "the run",
    "place.source": "{place} ({source})",
    "place.when": "{place}, step {step}, {phase}",
    "place.rank": "{place}, rank {rank}",
    "phase.setup": "setup",
    "phase.forward": "forward",
    "phase.backward": "backward",
    "phase.update": "update",
    "phase.other": "outside of forward, backward and update",
    "names.more": "{names} and {left} more",
}

_TENSORS = {
    "tensor.output": "its output",
    "tensor.named": "its {name}",
    "tensor.handed": "what it is given as {name}",
    "tensor.input": "its input {name}",
    "tensor.any_input": "its input",
    "tensor.gradient": "its gradient of {name}",
    "tensor.parameter": "parameter {name}",
    "tensor.any_parameter": "the parameter that it writes",
    "tensor.incoming": "the gradient that it is given for {name}",
    "tensor.instead": "what the target has instead of its output",
    "inputs.given": "the tensors before it",
    "inputs.summed": "the gradients that are added up in it",
    "inputs.call": "its inputs",
    "inputs.compared": "those of its inputs that were compared",
    "inputs.update": "its gradients and state",
    "inputs.nearest": "the nearest tensors before it that were compared",
}

_CLAUSES = {
    "in.identical": "{inputs} are identical",
    "in.rounding": "{inputs} agree within {dtype} rounding ({error})",
    "in.differ": "{inputs} differ by {error}",
    "in.unmeasured": "{inputs} cannot be measured (inf or nan)",
    "out.identical": "{tensor} is identical",
    "out.differs": "{tensor} differs by {error}",
    "out.different": "{tensor} differs",
    "out.unmeasured": "{tensor} differs and cannot be measured (inf or nan)",
    "distance": "the distance is {error}",
    "distance.up_to": "they differ by up to {error}",
    "out.ratio": "{ratio} times what came in",
    "out.expected": "where rounding and its inputs explain {expected}",
    "out.expected.alone": "where rounding explains {expected}",
    "out.expected.shown": "where rounding and these explain {expected}",
    "peers": "elsewhere in this run the same operation passes on {peers} times its inputs' error",
    "digests": "only digests were compared, so by how much is not known",
    "argument.one": "an argument differs: {list}",
    "argument.many": "{number} arguments differ: {list}",
    "setting.one": "a setting differs: {list}",
    "setting.many": "{number} settings differ: {list}",
    "argument": "{place} is {reference} in the reference, {target} in the target",
    "argument.absent": "not given",
    "classes": "the operation is {reference} in the reference, {target} in the target",
    "shapes": "{tensor} has shape {reference} in the reference, {target} in the target",
    "dtypes": "{tensor} is {reference} in the reference, {target} in the target",
    "only.reference": "only the reference calls {names}",
    "only.target": "only the target calls {names}",
    "only.this": "only the reference makes this call",
    "not_finite": "inf or nan in {tensor}: {target} in the target, {reference} in the reference",
    "not_finite.both": "inf or nan in {tensor}: {target} in both runs",
    "not_finite.none": "none",
    "extremes": "the largest finite magnitude is {reference} in the reference, {target} in the target",
    "largest": "{extremes} ({dtype} ends at {largest})",
    "generators": "the generator's state before it is {reference} in the reference, {target} in the target",
    "parameters": "concerned: {names}",
    "count.tensors": "{tensors} in all",
    "count.elements": "concerned: {elements}",
    "scale": "the target's values are {scale} times the reference's, as with a scaled loss",
    "worst": "at {index} it gives {computed} instead of {exact}",
    "depend": "this reaches {calls} after it",
}

_PROOFS = {
    "proof.target": (
        "executed again in float64 from each run's own inputs: the target made {target} itself{worst}, "
        "inherited {inherited}, the reference made {reference}"
    ),
    "proof.reference": (
        "executed again in float64 from each run's own inputs: the reference made {reference} itself{worst}, "
        "the target made {target}, inherited {inherited}"
    ),
    "proof.neither": (
        "executed again in float64, neither run's call is wrong by itself: "
        "the target made {target}, inherited {inherited}, the reference made {reference}"
    ),
    "proof.both": (
        "executed again in float64, both runs' calls are off alike: "
        "the target made {target}, inherited {inherited}, the reference made {reference}"
    ),
    "proof.kernel": (
        "executed again in float64, the target's call is off no more than this machine's own kernel: "
        "the target made {target}, inherited {inherited}, the reference made {reference}"
    ),
    "proof.arguments": (
        "executed again in float64: the arguments that differ made {arguments}, the target itself {target}, "
        "inherited {inherited}, the reference made {reference}"
    ),
    "proof.and_arguments": "{proof}, the arguments that differ {arguments}",
    "proof.worst": " (at {index} {computed} instead of {exact})",
    "proof.worst_ulp": " (at {index} {computed} instead of {exact}, {ulp} ulp)",
    "proof.not_native": "this machine's own kernel makes no such error from the same inputs",
    "why.not_finite": "it gives inf or nan where the truth is finite, or the other way round",
    "why.flushed": "it flushes small numbers to zero",
    "why.underflow": "its numbers are too small for their type",
    "why.unequal": "this operation gives the truth exactly, and here it does not",
    "why.outlier": "no rounding explains its largest error",
    "why.near": "one rounding does not explain its largest error",
    "why.noise": "its errors are larger than those of a sound kernel",
    "why.bias": "its errors go one way, as roundings do not",
    "why.structure": "its errors gather at one index of an axis, as roundings do not",
    "why.sound": "a few of its elements are much further off than all others",
    "why.norm": "its error is larger than rounding explains",
    "final": "the final difference ({difference} in {call})",
    "share.of": "it accounts for {share} of {final}",
    "share.against": "it acts against {final}: {share} of it",
    "share.cancelled": "its effect is {share} of {final}, which others cancel",
    "share.small": "less than 1%",
}

_ONE_SIDED = {
    "origins": "that tensor is {reference} in the reference, {target} in the target",
    "span": "what it reads was not compared, and comes from {names}: the error may have been made there",
    "given_by": "it is not what {name} made",
    "seen_at": "not its own output was compared, but {tensor}, which is the same tensor",
    "given_as": "the reference gives that tensor as {place}",
    "tied.reference": "in the reference it is the same parameter as {name}, in the target it is not",
    "tied.target": "in the target it is the same parameter as {name}, in the reference it is not",
    "leftover.target": "the target's gradient still holds that of step {step}: it was not set to zero (zero_grad)",
    "leftover.reference": (
        "the reference's gradient still holds that of step {step}: it was not set to zero (zero_grad)"
    ),
    "alone.reference": "only the reference makes this optimizer step",
    "alone.target": "only the target makes this optimizer step",
    "skipped.target": (
        "only the reference makes this optimizer step: the target makes none after backward {number} of step {step}"
    ),
    "skipped.reference": (
        "only the target makes this optimizer step: the reference makes none after backward {number} of step {step}"
    ),
    "shifted.target": "the target leaves out a step: its step {step} has the inputs of the reference's step {other}",
    "shifted.reference": "the target makes a step more: its step {other} has the inputs of the reference's step {step}",
    "updated.reference": "only the reference's optimizer changes {names}",
    "updated.target": "only the target's optimizer changes {names}",
    "ungraded.reference": "the reference's optimizer has no gradient for {parameter}, the target's has one",
    "ungraded.target": "the target's optimizer has no gradient for {parameter}, the reference's has one",
    "backwards": "backwards before an optimizer step: {reference} in the reference, {target} in the target",
    "paired": "only {matched} of {calls} have a partner: these look like different models or programs",
}

_LEADS = {
    "lead.computation": "it computes something else than in the reference",
    "lead.optimizer": "its update is not the reference's",
    "lead.input": "{tensor} is not the same data in both runs",
    "lead.parameter": "the runs do not begin with the same parameters",
    "lead.changed": "the parameters are no longer the same, and no recorded call has changed them",
    "lead.randomness": "it draws other random numbers than in the reference",
    "lead.overflow": "it overflows in one of the runs",
    "lead.structure": "the two runs are built differently here",
    "lead.dtype": "it computes in another dtype than in the reference",
    "lead.choice": "it chooses otherwise than in the reference",
    "lead.choice.inputs": "it chooses otherwise than in the reference, as its inputs differ",
    "note.computation": "it does not compute exactly the same in both runs",
    "note.optimizer": "its update is not exactly the same in both runs",
    "note.explained": "rounding and its inputs explain that",
    "note.parameter": "parameters differ a little at the first captured step: a starting condition",
    "note.structure": "the runs make other calls here",
    "note.choice": "a choice flipped within the rounding of its inputs",
    "note.choice.inputs": "a choice flipped, as its inputs differ",
    "note.depend": "this reaches {calls} after it, counted apart",
}

_ADVICE = {
    "advice.same_argument": "Give {subject} the same arguments in both runs and compare again.",
    "advice.raise_precision": "Raise the precision of {subject} (float32) and see whether the difference goes.",
    "advice.run_on_cpu": "Run {subject} on the CPU: if the difference goes, the device's kernel is at fault.",
    "advice.unfuse": "Use the unfused form of {subject}: if the difference goes, the fused kernel is at fault.",
    "advice.compare_logic": "Read the code of {subject} in both runs side by side: they do not compute the same.",
    "advice.same_data": "Feed both runs the same data in the same order ({subject}), then compare again.",
    "advice.same_weights": "Start both runs from the same weights ({subject}), then compare again.",
    "advice.same_seed": "Set the same seed in both runs, or switch the randomness off ({subject}), then compare again.",
    "advice.same_setting": "Use the same setting in both runs ({subject}), then compare again.",
    "advice.fp16_overflow": (
        "Float16 overflow: {subject} leaves the range of float16. Remove that first "
        "(bfloat16, float32, a smaller loss scale), then compare again."
    ),
    "advice.input_inconsistent": (
        "Input inconsistent: {subject} does not get the same input data in both runs; "
        "what follows can only be judged once it does."
    ),
    "advice.global_consistency": "Global consistency: all compared data meets the accuracy requirement.",
    "advice.problem_node": (
        "By the older measure (cosine similarity 0.99) {subject} is a problem node: the last forward tensor fails it."
    ),
    "advice.single_point_error": (
        "By the older measure (cosine similarity 0.99) {subject} is a single-point error: "
        "the last forward tensor still passes it."
    ),
    "advice.compare_span": (
        "One of these operators is wrong: {subject}. Get a dump and a reference of each output of theirs, "
        "then compare again."
    ),
    "advice.same_trained": (
        "Train the same parameters in both runs ({subject}): look at requires_grad, at detach and no_grad on the way "
        "to the loss, and at what the optimizer is given."
    ),
    "advice.zero_gradients": "Set the gradients to zero in every step of both runs (zero_grad), then compare again.",
    "advice.same_steps": (
        "See why {subject} is made in one run only: a condition around it, an exception that was caught, "
        "another gradient accumulation."
    ),
    "advice.same_model": (
        "Compare two runs of the same model; where only names differ, say which belong together (--map FILE.yaml)."
    ),
    "advice.find_writer": (
        "Look for what writes {subject} unseen: .data, numpy, a kernel of your own, a checkpoint that is loaded later."
    ),
    "advice.save_tensors": (
        "Capture both runs again with --save tensors: distances are then exact, "
        "and the error of {subject} can be split into made here and inherited."
    ),
    "advice.custom_operator": (
        "{subject} is a custom operator: read its code beside the original's, on the inputs that were dumped."
    ),
    "advice.keep_dtype": (
        "{subject} is built in and computes in float16: keep its type (keep_dtype_scope, or the block list of "
        "modify_mixlist for mixed precision) and see whether the difference goes."
    ),
    "advice.give_graph": (
        "{subject} is a dump of an Ascend NPU, whose operators have other names than the original network's: give the "
        "graph that maps them, --graph ge_proto_*_Build.txt."
    ),
    "advice.switch_pass_off": (
        "The operator was fused ({subject}): switch that off in a fusion switch file (ulpscope fusion --switch-off), "
        "dump again, and compare both dumps with --close-graph."
    ),
    "subject.call": "this call",
    "subject.data": "the first batch",
    "subject.weights": "the first parameters",
    "subject.seed": "dropout, for one",
    "subject.setting": "optimizer, scheduler, autocast",
}

_HEADINGS = {
    "heading.diverged": "DIVERGED at step {step}, {phase}",
    "heading.rank": "{heading}, rank {rank}",
    "heading.module": "{heading}, in {module}",
    "heading.span": "{heading}, between {names} (not compared) and {module}",
    "heading.given": "{heading}, between {name} and {module}",
    "heading.cause": "{heading}: {cause}",
    "heading.agree": "AGREE: {calls} and {tensors} compared ({what})",
    "heading.agree_in": "AGREE in {parts}: {calls} and {tensors} compared ({what})",
    "heading.incomplete": "INCOMPLETE: {calls} and {tensors} agree ({what}), and the runs were not captured alike",
    "heading.incomplete_in": "INCOMPLETE: the runs agree in {parts}, not all of them was compared ({what})",
    "heading.nothing": "NOTHING COMPARED: no tensor of {reference} could be compared with one of {target}",
    "heading.unexplained": "DIVERGED, and no single call stands out",
    "heading.step": "step {steps}",
    "heading.steps": "steps {steps}",
    "heading.ranks": "{steps}, rank {ranks}",
    "cause.optimizer": "the optimizer",
    "cause.input": "other input data",
    "cause.parameter": "other parameters",
    "cause.randomness": "other random numbers",
    "cause.overflow": "overflow",
    "cause.structure": "other structure",
    "cause.step": "a step that only one run makes",
    "cause.model": "other models",
    "cause.dtype": "another dtype",
    "cause.choice": "another choice",
}

_LINES = {
    "label.anchor": "anchor",
    "label.before": "before it",
    "label.here": "here",
    "label.after": "after it",
    "label.also": "also",
    "label.ledger": "ledger",
    "label.note": "note",
    "label.advice": "advice",
    "label.scope": "scope",
    "label.missing": "missing",
    "next": "Next: {command}",
    "page": "Open in a browser: {path}",
    "anchor.identical": "{names}: identical bits",
    "anchor.differs": "{name}: {identical} of {compared} identical, the others differ by up to {worst}",
    "anchor.unmeasured": "{name}: {identical} of {compared} identical",
    "anchor.not_compared": "{name}: not compared",
    "anchor.what.inputs": "first inputs",
    "anchor.what.parameters": "parameters",
    "anchor.what.embedding": "embedding output",
    "neighbour.in": "in {error}",
    "neighbour.out": "out {error}",
    "judgement.identical": "identical",
    "judgement.rounding": "rounding",
    "judgement.inherited": "inherited",
    "judgement.made_here": "made here",
    "judgement.unproven": "beyond the estimate (no call was proven wrong)",
    "judgement.after_choice": "after choice",
    "judgement.unresolved": "unresolved",
    "judgement.between": "made in between or here",
    "followers": "{calls} carry this error on; {rest}.",
    "followers.one": "1 call carries this error on; {rest}.",
    "followers.none": "no later call carries this error on.",
    "followers.calm": "none stands out",
    "followers.more": "{findings} more below",
    "more.findings": "and {number} more, in --json and summary.json",
    "counts.calls": "{calls} compared",
    "counts.unmatched": "{calls} compared ({unmatched} without a partner)",
    "counts.line": "{calls}, {how}; {tensors}: {judged}.",
    "counts.of": "{number} {judgement}",
    "how.data": "distances measured on the data",
    "how.sketch": "distances estimated from sketches",
    "how.stats": "distances guessed from stats",
    "how.digest": "from digests only: identical or not",
    "how.none": "nothing measured",
    "how.mixed": "{how} ({number})",
    "ledger.sound": "{calls} executed again in float64: each within rounding of its own inputs",
    "ledger.executed": "{calls} executed again in float64",
    "ledger.none": "no call executed again: {reasons}",
    "ledger.left": "{told}; {calls} not: {reasons}",
    "ledger.auto": "{told} (--replay on: every call)",
    "ledger.reason": "{reason} ({number})",
    "ledger.both": "off alike in both runs: {names}",
    "ledger.kernel": "off as this machine's own kernel is: {names}",
    "ledger.step": "{name} (step {step})",
    "ledger.rank": "{name} (rank {rank}, step {step})",
    "ledger.call": "call",
    "ledger.module": "module",
    "ledger.target": "target made",
    "ledger.inherited": "inherited",
    "ledger.reference": "reference made",
    "ledger.ulp": "ulp",
    "ledger.share": "share",
    "ledger.others": "other calls",
    "ledger.small": "<1%",
    "ledger.cell": "{name} {number}",
    "ledger.closure": "{call} differs by {difference}: {parts}; the parts add up to {closure}",
    "part.calls": "calls made {share}",
    "part.start": "inputs and parameters {share}",
    "part.unseen": "{share} comes from or through calls that were not executed again",
    "ledger.open": (
        "{call} differs by {difference}, of which the parts account for {closure}: the rest is beyond first order, "
        "or came with integers, random numbers or calls that were not executed again"
    ),
    "standard": "Judged by the standard {standard}, not by what rounding explains.",
    "extent.share": "{compared} of {whole}",
    "scope.same_run": "the reference and the target are one run: it was compared with itself",
    "scope.filters": "other calls were captured: {reference} in the reference, {target} in the target",
    "scope.no_filter": "all",
    "scope.unresolved": "{tensors} unresolved: {reason}",
    "scope.ranks_reference": "only the reference has rank {numbers}",
    "scope.ranks_target": "only the target has rank {numbers}",
    "scope.steps_reference": "only the reference has step {numbers}",
    "scope.steps_target": "only the target has step {numbers}",
    "scope.levels": "the reference was captured at level {reference}, the target at level {target}",
    "scope.calls": "{reference} in the reference, {target} in the target, {matched} paired",
    "scope.unmatched": "{reference} of the reference and {target} of the target have no partner",
    "scope.not_compared": "{tensors} not compared: {reason}",
}

_REASONS = {
    "reason.shapes differ": "shapes differ",
    "reason.other kinds of numbers (integer, real, complex)": "other kinds of numbers (integer, real, complex)",
    "reason.not in the trace, which is incomplete": "not in the trace, which is incomplete",
    "reason.memory that nobody has written": "memory that nobody has written",
    "reason.bits differ among numbers of 2^29 and more, by how much is not known": (
        "bits differ among numbers of 2^29 and more, by how much is not known"
    ),
    "reason.bits differ by less than the sketch resolves": (
        "bits differ, by less than the sketch resolves; whether rounding explains it is not known"
    ),
    "reason.no stats": "no stats",
    "reason.inside of a judged backward": "inside of a judged backward",
    "reason.outputs that nothing reads, beside one that agrees": "outputs that nothing reads, beside one that agrees",
    "reason.random": "random",
    "reason.its data was not saved": "its data was not saved",
    "reason.torch is not installed here": "torch is not installed here",
    "reason.the reference has no saved data": "the reference has no saved data",
    "reason.the target has no saved data": "the target has no saved data",
    "reason.no pair of API calls": "no pair of API calls",
    "reason.other elements are set aside (attention masks)": "other elements are set aside (attention masks)",
}

PHRASES = Phrases(
    templates={
        **_PLACES,
        **_TENSORS,
        **_CLAUSES,
        **_PROOFS,
        **_ONE_SIDED,
        **_LEADS,
        **_ADVICE,
        **_HEADINGS,
        **_LINES,
        **_REASONS,
    },
    nouns={
        "call": ("call", "calls"),
        "tensor": ("tensor", "tensors"),
        "element": ("element", "elements"),
        "finding": ("finding", "findings"),
        "step": ("step", "steps"),
        "rank": ("rank", "ranks"),
    },
    comma=", ",
    clause_comma=", ",
    semicolon="; ",
    stop=".",
    last=" and ",
)
