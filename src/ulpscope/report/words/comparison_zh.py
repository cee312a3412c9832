"""What `ulpscope compare` says, in Chinese. Keys and parts are those of words_en."""

from ulpscope.report.words.language import Phrases

_PLACES = {
    "sentence": "{place}：{body}。",
    "place.call": "{call}",
    "place.call_in": "{module} 中的 {call}",
    "place.module": "{module}",
    "place.nowhere": "整个运行",
    "place.source": "{place}（{source}）",
    "place.when": "{place}，step {step}，{phase}",
    "place.rank": "{place}，rank {rank}",
    "phase.setup": "准备阶段",
    "phase.forward": "前向",
    "phase.backward": "反向",
    "phase.update": "参数更新",
    "phase.other": "前向、反向和更新之外",
    "names.more": "{names} 等（另有 {left} 个）",
}

_TENSORS = {
    "tensor.output": "其输出",
    "tensor.named": "其 {name} ",
    "tensor.handed": "传给它的 {name} ",
    "tensor.input": "其输入 {name} ",
    "tensor.any_input": "其输入",
    "tensor.gradient": "其对 {name} 的梯度",
    "tensor.parameter": "模型参数 {name} ",
    "tensor.any_parameter": "它写入的模型参数",
    "tensor.incoming": "传给它的 {name} 的梯度",
    "tensor.instead": "目标运行中代替其输出的张量",
    "inputs.given": "它之前的张量",
    "inputs.summed": "累加到其中的各个梯度",
    "inputs.call": "其输入",
    "inputs.compared": "其已比较的输入",
    "inputs.update": "其梯度和状态",
    "inputs.nearest": "在它之前最近的已比较张量",
}

_CLAUSES = {
    "in.identical": "{inputs}逐比特相同",
    "in.rounding": "{inputs}在 {dtype} 舍入误差范围内一致（{error}）",
    "in.differ": "{inputs}相差 {error}",
    "in.unmeasured": "{inputs}的差距无法度量（inf 或 nan）",
    "out.identical": "{tensor}逐比特相同",
    "out.differs": "{tensor}相差 {error}",
    "out.different": "{tensor}不同",
    "out.unmeasured": "{tensor}不同，且差距无法度量（inf 或 nan）",
    "distance": "相差 {error}",
    "distance.up_to": "最多相差 {error}",
    "out.ratio": "是输入误差的 {ratio} 倍",
    "out.expected": "而舍入和输入误差只能解释 {expected}",
    "out.expected.alone": "而舍入只能解释 {expected}",
    "out.expected.shown": "而舍入和这些误差只能解释 {expected}",
    "peers": "同一算子在本次运行的其他位置传递输入误差的 {peers} 倍",
    "digests": "只比较了摘要值（digest），因此不知道相差多少",
    "argument.one": "有一个调用参数不同：{list}",
    "argument.many": "有 {number} 个调用参数不同：{list}",
    "setting.one": "有一项设置不同：{list}",
    "setting.many": "有 {number} 项设置不同：{list}",
    "argument": "{place} 在参考运行中为 {reference}，在目标运行中为 {target}",
    "argument.absent": "未给出",
    "classes": "该算子在参考运行中是 {reference}，在目标运行中是 {target}",
    "shapes": "{tensor}的形状在参考运行中是 {reference}，在目标运行中是 {target}",
    "dtypes": "{tensor}在参考运行中是 {reference}，在目标运行中是 {target}",
    "only.reference": "只有参考运行调用了 {names}",
    "only.target": "只有目标运行调用了 {names}",
    "only.this": "只有参考运行有这次调用",
    "not_finite": "{tensor}中的 inf 或 nan：目标运行 {target}，参考运行 {reference}",
    "not_finite.both": "{tensor}中的 inf 或 nan：两次运行都是 {target}",
    "not_finite.none": "0 个",
    "extremes": "最大的有限绝对值在参考运行中是 {reference}，在目标运行中是 {target}",
    "largest": "{extremes}（{dtype} 的上限是 {largest}）",
    "generators": "调用前随机数生成器的状态在参考运行中是 {reference}，在目标运行中是 {target}",
    "parameters": "涉及：{names}",
    "count.tensors": "共 {tensors}",
    "count.elements": "涉及 {elements}",
    "scale": "目标运行的值是参考运行的 {scale} 倍，与损失缩放（loss scaling）相符",
    "worst": "{index} 处得到 {computed}，应为 {exact}",
    "depend": "影响其后的 {calls}",
}

_PROOFS = {
    "proof.target": (
        "用各自的输入以 float64 重新执行：目标运行自身产生 {target}{worst}，继承 {inherited}，参考运行产生 {reference}"
    ),
    "proof.reference": (
        "用各自的输入以 float64 重新执行：参考运行自身产生 {reference}{worst}，目标运行产生 {target}，继承 {inherited}"
    ),
    "proof.neither": (
        "以 float64 重新执行，两次运行的这次调用本身都没有错：目标运行产生 {target}，继承 {inherited}，"
        "参考运行产生 {reference}"
    ),
    "proof.both": (
        "以 float64 重新执行，两次运行的这次调用有同样的偏差：目标运行产生 {target}，继承 {inherited}，"
        "参考运行产生 {reference}"
    ),
    "proof.kernel": (
        "以 float64 重新执行，目标运行的这次调用的偏差不超过本机自己的 kernel：目标运行产生 {target}，"
        "继承 {inherited}，参考运行产生 {reference}"
    ),
    "proof.arguments": (
        "以 float64 重新执行：不同的调用参数产生 {arguments}，目标运行自身产生 {target}，继承 {inherited}，"
        "参考运行产生 {reference}"
    ),
    "proof.and_arguments": "{proof}，不同的调用参数产生 {arguments}",
    "proof.worst": "（{index} 处得到 {computed}，应为 {exact}）",
    "proof.worst_ulp": "（{index} 处得到 {computed}，应为 {exact}，差 {ulp} ulp）",
    "proof.not_native": "本机自己的 kernel 用同样的输入没有这种误差",
    "why.not_finite": "inf 或 nan 的位置与真值不符",
    "why.flushed": "它把过小的数清零",
    "why.underflow": "它的数值对该类型而言过小",
    "why.unequal": "这种操作应当精确给出真值，这里却没有",
    "why.outlier": "舍入无法解释它最大的误差",
    "why.near": "一次舍入无法解释它最大的误差",
    "why.noise": "它的误差大于正确的 kernel 应有的水平",
    "why.bias": "它的误差偏向一侧，舍入不会这样",
    "why.structure": "它的误差集中在某一轴的某个下标，舍入不会这样",
    "why.sound": "少数元素的误差远大于其余元素",
    "why.norm": "它的误差大于舍入所能解释的范围",
    "final": "最终差异（{call} 相差 {difference}）",
    "share.of": "它占{final}的 {share}",
    "share.against": "它抵消了一部分{final}：占其 {share}",
    "share.cancelled": "它的影响是{final}的 {share}，大部分被其他调用抵消",
    "share.small": "不到 1%",
}

_ONE_SIDED = {
    "origins": "该张量在参考运行中是 {reference}，在目标运行中是 {target}",
    "span": "它读取的内容未经比较，来自 {names}：误差可能产生于那里",
    "given_by": "它不是 {name} 的输出",
    "seen_at": "比较的不是它自身的输出，而是同一张量 {tensor}",
    "given_as": "参考运行把该张量作为 {place} 传入",
    "tied.reference": "在参考运行中它与 {name} 是同一个模型参数，在目标运行中不是",
    "tied.target": "在目标运行中它与 {name} 是同一个模型参数，在参考运行中不是",
    "leftover.target": "目标运行的梯度中还留有 step {step} 的梯度：没有清零（zero_grad）",
    "leftover.reference": "参考运行的梯度中还留有 step {step} 的梯度：没有清零（zero_grad）",
    "alone.reference": "只有参考运行执行了这次优化器更新",
    "alone.target": "只有目标运行执行了这次优化器更新",
    "skipped.target": "只有参考运行执行了这次优化器更新：目标运行在 step {step} 的第 {number} 次反向之后没有更新",
    "skipped.reference": "只有目标运行执行了这次优化器更新：参考运行在 step {step} 的第 {number} 次反向之后没有更新",
    "shifted.target": "目标运行少了一个 step：它的 step {step} 的输入是参考运行 step {other} 的输入",
    "shifted.reference": "目标运行多了一个 step：它的 step {other} 的输入是参考运行 step {step} 的输入",
    "updated.reference": "只有参考运行的优化器更新了 {names}",
    "updated.target": "只有目标运行的优化器更新了 {names}",
    "ungraded.reference": "参考运行的优化器没有{parameter}的梯度，目标运行的有",
    "ungraded.target": "目标运行的优化器没有{parameter}的梯度，参考运行的有",
    "backwards": "优化器每次更新之前的反向次数：参考运行 {reference} 次，目标运行 {target} 次",
    "paired": "{calls}中只有 {matched} 个有对应的调用：这看起来是不同的模型或程序",
}

_LEADS = {
    "lead.computation": "它算出的结果与参考运行不同",
    "lead.optimizer": "它的更新与参考运行不同",
    "lead.input": "{tensor}在两次运行中不是同样的数据",
    "lead.parameter": "两次运行开始时的模型参数不同",
    "lead.changed": "模型参数不再相同，而没有记录到修改它们的调用",
    "lead.randomness": "它取到的随机数与参考运行不同",
    "lead.overflow": "它在其中一次运行里溢出",
    "lead.structure": "两次运行在这里的结构不同",
    "lead.dtype": "它计算所用的 dtype 与参考运行不同",
    "lead.choice": "它作出的选择与参考运行不同",
    "lead.choice.inputs": "由于输入不同，它的选择与参考运行不同",
    "note.computation": "它在两次运行中的计算不完全相同",
    "note.optimizer": "它的更新在两次运行中不完全相同",
    "note.explained": "舍入和输入误差足以解释",
    "note.parameter": "在采集的第一个 step，模型参数略有不同：属于起始条件",
    "note.structure": "两次运行在这里的调用不同",
    "note.choice": "在输入的舍入误差范围内，一个选择发生了翻转",
    "note.choice.inputs": "由于输入不同，选择发生了翻转",
    "note.depend": "影响其后的 {calls}，单独计数",
}

_ADVICE = {
    "advice.same_argument": "让 {subject} 在两次运行中使用相同的调用参数，然后重新比较。",
    "advice.raise_precision": "提高 {subject} 的精度：改用 float32 计算，看差异是否消失。",
    "advice.run_on_cpu": "让 {subject} 在 CPU 上运行：如果差异消失，则问题在设备的 kernel。",
    "advice.unfuse": "改用 {subject} 的非融合形式：如果差异消失，则问题在融合 kernel。",
    "advice.compare_logic": "对照阅读 {subject} 在两次运行中的代码：它们计算的不是同一件事。",
    "advice.same_data": "让两次运行以相同的顺序使用相同的数据（{subject}），然后重新比较。",
    "advice.same_weights": "让两次运行从相同的权重开始（{subject}），然后重新比较。",
    "advice.same_seed": "在两次运行中设置相同的随机种子，或关闭随机性（{subject}），然后重新比较。",
    "advice.same_setting": "在两次运行中使用相同的设置（{subject}），然后重新比较。",
    "advice.fp16_overflow": (
        "float16 溢出：{subject} 超出了 float16 的范围。"
        "请先消除溢出（改用 bfloat16 或 float32，或减小 loss scale），然后重新比较。"
    ),
    "advice.input_inconsistent": (
        "输入不一致：{subject} 在两次运行中得到的输入数据不同；输入一致之后，才能判断其后的结果。"
    ),
    "advice.global_consistency": "全局一致性：所有参与比较的数据都满足精度要求。",
    "advice.problem_node": "按旧的标准（余弦相似度 0.99），{subject} 是问题节点：最后一个前向张量不达标。",
    "advice.single_point_error": "按旧的标准（余弦相似度 0.99），{subject} 是单点误差：最后一个前向张量仍然达标。",
    "advice.compare_span": "这些算子之一有错：{subject}。请取得它们每个输出的 dump 和参考数据，然后重新比较。",
    "advice.same_trained": (
        "请让两次运行训练相同的参数（{subject}）：检查 requires_grad、通往 loss 的路径上的 detach 和 no_grad，"
        "以及传给优化器的参数。"
    ),
    "advice.zero_gradients": "请在两次运行的每个 step 中把梯度清零（zero_grad），然后重新比较。",
    "advice.same_steps": "请检查为什么 {subject} 只在一次运行中执行：它外面的条件、被捕获的异常、不同的梯度累积。",
    "advice.same_model": "请比较同一模型的两次运行；如果只是名字不同，请用 --map FILE.yaml 指明对应关系。",
    "advice.find_writer": (
        "请查找在未被记录的情况下写入 {subject} 的代码：.data、numpy、自定义 kernel、之后加载的 checkpoint。"
    ),
    "advice.save_tensors": (
        "加上 --save tensors 重新采集两次运行：这样差距是精确的，{subject} 的误差可以分成在此产生的和继承的两部分。"
    ),
    "advice.custom_operator": "{subject} 是自定义算子：用已 dump 的输入，对照原算子检查它的实现逻辑。",
    "advice.keep_dtype": (
        "{subject} 是以 float16 计算的内置算子：保持其数据类型（keep_dtype_scope，或 modify_mixlist 的黑名单），"
        "看差异是否消失。"
    ),
    "advice.give_graph": (
        "{subject} 是昇腾 NPU 的 dump 数据，其算子名与原网络不同：请用 --graph ge_proto_*_Build.txt "
        "给出对应关系的计算图。"
    ),
    "advice.switch_pass_off": (
        "该算子经过融合（{subject}）：在融合开关文件中关闭这些融合（ulpscope fusion --switch-off），重新 dump，"
        "再用 --close-graph 比较两次 dump。"
    ),
    "subject.call": "该调用",
    "subject.data": "第一个 batch",
    "subject.weights": "最初的模型参数",
    "subject.seed": "例如 dropout",
    "subject.setting": "优化器、学习率调度、autocast",
}

_HEADINGS = {
    "heading.diverged": "出现分歧（DIVERGED）：step {step}，{phase}",
    "heading.rank": "{heading}，rank {rank}",
    "heading.module": "{heading}，{module}",
    "heading.span": "{heading}，在 {names}（未比较）与 {module} 之间",
    "heading.given": "{heading}，在 {name} 与 {module} 之间",
    "heading.cause": "{heading}：{cause}",
    "heading.agree": "一致（AGREE）：比较了 {calls}、{tensors}（{what}）",
    "heading.agree_in": "在 {parts}中一致（AGREE）：比较了 {calls}、{tensors}（{what}）",
    "heading.incomplete": "不完整（INCOMPLETE）：{calls}、{tensors}一致（{what}），但两次运行的采集方式不同",
    "heading.incomplete_in": "不完整（INCOMPLETE）：两次运行在 {parts}中一致，并未比较全部（{what}）",
    "heading.nothing": "没有可比较的内容（NOTHING COMPARED）：{reference} 中没有任何张量能与 {target} 中的张量比较",
    "heading.unexplained": "出现分歧（DIVERGED），没有单个突出的调用",
    "heading.step": "step {steps}",
    "heading.steps": "step {steps}",
    "heading.ranks": "{steps}，rank {ranks}",
    "cause.optimizer": "优化器",
    "cause.input": "输入数据不同",
    "cause.parameter": "模型参数不同",
    "cause.randomness": "随机数不同",
    "cause.overflow": "溢出",
    "cause.structure": "结构不同",
    "cause.step": "只有一次运行执行的 step",
    "cause.model": "模型不同",
    "cause.dtype": "dtype 不同",
    "cause.choice": "选择不同",
}

_LINES = {
    "label.anchor": "起点",
    "label.before": "之前",
    "label.here": "此处",
    "label.after": "之后",
    "label.also": "另外",
    "label.ledger": "账本",
    "label.note": "备注",
    "label.advice": "建议",
    "label.scope": "范围",
    "label.missing": "缺失",
    "next": "下一步：{command}",
    "page": "用浏览器打开：{path}",
    "anchor.identical": "{names}：逐比特相同",
    "anchor.differs": "{name}：{compared} 个中有 {identical} 个逐比特相同，其余最多相差 {worst}",
    "anchor.unmeasured": "{name}：{compared} 个中有 {identical} 个逐比特相同",
    "anchor.not_compared": "{name}：未比较",
    "anchor.what.inputs": "最初的输入",
    "anchor.what.parameters": "模型参数",
    "anchor.what.embedding": "embedding 的输出",
    "neighbour.in": "输入 {error}",
    "neighbour.out": "输出 {error}",
    "judgement.identical": "逐比特相同",
    "judgement.rounding": "舍入",
    "judgement.inherited": "继承",
    "judgement.made_here": "在此产生",
    "judgement.unproven": "超出估计（没有调用被证明有错）",
    "judgement.after_choice": "选择之后",
    "judgement.unresolved": "无法分辨",
    "judgement.between": "在其间或在此产生",
    "followers": "{calls}继续传递这一误差；{rest}。",
    "followers.one": "1 次调用继续传递这一误差；{rest}。",
    "followers.none": "其后没有调用传递这一误差。",
    "followers.calm": "没有更突出的",
    "followers.more": "另有 {findings}，见下",
    "more.findings": "另有 {number} 项，见 --json 和 summary.json",
    "counts.calls": "比较了 {calls}",
    "counts.unmatched": "比较了 {calls}（另有 {unmatched} 次没有对应的调用）",
    "counts.line": "{calls}，{how}；{tensors}：{judged}。",
    "counts.of": "{judgement} {number}",
    "how.data": "差距由数据直接计算",
    "how.sketch": "差距由 sketch 估计",
    "how.stats": "差距由统计值推测",
    "how.digest": "只凭摘要值（digest）：相同与否",
    "how.none": "没有度量",
    "how.mixed": "{how}（{number}）",
    "ledger.sound": "以 float64 重新执行了 {calls}：每次的结果都在其自身输入的舍入范围之内",
    "ledger.executed": "以 float64 重新执行了 {calls}",
    "ledger.none": "没有重新执行任何调用：{reasons}",
    "ledger.left": "{told}；未执行 {calls}：{reasons}",
    "ledger.auto": "{told}（--replay on 执行每次调用）",
    "ledger.reason": "{reason}（{number}）",
    "ledger.both": "两次运行有同样的偏差：{names}",
    "ledger.kernel": "偏差与本机自己的 kernel 相同：{names}",
    "ledger.step": "{name}（step {step}）",
    "ledger.rank": "{name}（rank {rank}，step {step}）",
    "ledger.call": "调用",
    "ledger.module": "模块",
    "ledger.target": "目标产生",
    "ledger.inherited": "继承",
    "ledger.reference": "参考产生",
    "ledger.ulp": "ulp",
    "ledger.share": "占比",
    "ledger.others": "其他调用",
    "ledger.small": "<1%",
    "ledger.cell": "{name} {number}",
    "ledger.closure": "{call} 相差 {difference}：{parts}；各部分之和为 {closure}",
    "part.calls": "各次调用产生 {share}",
    "part.start": "输入和模型参数 {share}",
    "part.unseen": "{share} 来自或经过未重新执行的调用",
    "ledger.open": (
        "{call} 相差 {difference}，各部分只能说明其中的 {closure}：其余超出一阶近似，"
        "或来自整数、随机数或未重新执行的调用"
    ),
    "standard": "判断所用标准为 {standard}，而不是舍入所能解释的范围。",
    "extent.share": "{whole}中的 {compared}",
    "scope.same_run": "参考运行与目标运行是同一次运行：与自身比较",
    "scope.filters": "采集的调用不同：参考运行为 {reference}，目标运行为 {target}",
    "scope.no_filter": "全部",
    "scope.unresolved": "{tensors}无法分辨：{reason}",
    "scope.ranks_reference": "只有参考运行有 rank {numbers}",
    "scope.ranks_target": "只有目标运行有 rank {numbers}",
    "scope.steps_reference": "只有参考运行有 step {numbers}",
    "scope.steps_target": "只有目标运行有 step {numbers}",
    "scope.levels": "参考运行的采集级别是 {reference}，目标运行的是 {target}",
    "scope.calls": "参考运行 {reference}，目标运行 {target}，成对 {matched}",
    "scope.unmatched": "参考运行有 {reference}、目标运行有 {target}没有对应的调用",
    "scope.not_compared": "{tensors}未比较：{reason}",
}

_REASONS = {
    "reason.shapes differ": "形状不同",
    "reason.other kinds of numbers (integer, real, complex)": "数的种类不同（整数、实数、复数）",
    "reason.not in the trace, which is incomplete": "不在轨迹中，轨迹不完整",
    "reason.memory that nobody has written": "从未写入过的内存",
    "reason.bits differ among numbers of 2^29 and more, by how much is not known": (
        "2^29 及以上的数比特不同，差多少无法得知"
    ),
    "reason.bits differ by less than the sketch resolves": "比特不同，差异小于 sketch 的分辨率，无法得知是否由舍入造成",
    "reason.no stats": "没有统计值",
    "reason.inside of a judged backward": "在已判断的反向内部",
    "reason.outputs that nothing reads, beside one that agrees": "无人读取的输出，同一调用的其他输出一致",
    "reason.random": "随机",
    "reason.its data was not saved": "没有保存其数据",
    "reason.torch is not installed here": "此处没有安装 torch",
    "reason.the reference has no saved data": "参考运行没有保存数据",
    "reason.the target has no saved data": "目标运行没有保存数据",
    "reason.no pair of API calls": "没有成对的 API 调用",
    "reason.other elements are set aside (attention masks)": "被搁置的元素不同（注意力掩码）",
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
        "call": ("次调用", "次调用"),
        "tensor": ("个张量", "个张量"),
        "element": ("个元素", "个元素"),
        "finding": ("项发现", "项发现"),
        "step": ("个 step ", "个 step "),
        "rank": ("个 rank ", "个 rank "),
    },
    comma="、",
    clause_comma="，",
    semicolon="；",
    stop="。",
    last="、",
)
