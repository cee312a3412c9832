"""Remarks in Chinese. In English they are texts already: `src/ulpscope/records/remarks.py` has the same keys."""

from collections.abc import Iterable, Mapping

from ulpscope.records.remarks import Counted, Remark
from ulpscope.report.words.language import Language

CHINESE: Mapping[str, str] = {
    "within": "{place}：{remark}",
    "problem": "有问题：{problem}",
    "not_closed": "未正常关闭：进程仍在运行，或已被终止",
    "no_rank_file": "{name}：没有 {file}，未读取",
    "stacks_missing": "缺少 {file}：其中的调用没有调用栈",
    "step_unfinished": "第 {step} 步未完成：已写出{parts}",
    "step_parts": "第 {step} 步应有{parts}，实际只有 {found} 个",
    "part_unread": "第 {step} 步的第 {part} 部分没有写完，未读取：缺少 calls 文件",
    "part_incomplete": "第 {step} 步的第 {part} 部分不完整：缺少 {tables} 文件",
    "half_written": "{file} 只写了一半，未读取",
    "not_of_a_trace": "{file} 不是轨迹中的文件，未读取",
    "unused_module": "映射文件中的模块 {rule} 在目标中不存在",
    "unused_operation": "映射文件中的操作 {rule} 在目标中不存在",
    "unused_tensor": "映射文件中 {call} 的张量在目标中不存在",
    "sigill": "本机 CPU 的 bfloat16 矩阵乘法会触发 SIGILL；已改用 {setting} 检查",
    "step": "第 {step} 步：{remark}",
    "tensor_files": "{files}不存在，例如 {example}",
    "type_not_read": "{tensors}的类型为 {dtype}，未读取：不是可比较的类型",
    "lines_again": "{file} 中有{lines}未读取：同一调用的同一张量重复出现",
    "no_dump_json": "{directory} 中没有 dump.json，未读取",
    "process_not_compared": "{name} 是同一 rank 的另一个进程，未比较",
    "without_data": "{pairs}未用保存的数据比较：{problem}",
    "other_masks": "{tensors}只比较了注意力掩码以外的部分：掩码值在参考中是 {reference}，在目标中是 {target}",
    "rank_steps": "rank {rank}：第 {steps} 步并非两个轨迹都有",
    "npy_names": "{files}未读取，例如 {example}：文件名不是 算子名.输出序号.时间戳.npy 的形式",
    "npy_order": "{operators}的先后顺序未知，因为它们的文件时间戳相同，例如 {first} 和 {second}：暂按名称排序",
    "npy_executions": "无法确定 {operator} 的哪些输出属于同一次执行：各输出的文件数为 {counts}；暂按各自的先后次序配对",
    "tfdbg_graph": "算子的类型和输入未知：{problem}",
    "dumps_older": "{older} 的 dump 数据未读取；读取的是最新的 {newest}",
    "records_older": "{place} 中 {older} 的溢出记录未读取；读取的是最新的",
    "dumps_unnamed": "{files}在 {mapping} 中没有对应的名称，例如 {example}",
    "stats_only": "{operators}只有统计值 dump，未比较，例如 {example}",
    "dumps_unreadable": "{files}无法读取，或无法完整读取：{problem}",
    "overflowing": "{operators}共有{elements}溢出；设备对这些元素的处理结果不作判定：ulpscope overflow {path}",
    "device_chosen": "dump 数据中的设备 {others} 未比较；比较的是设备 {taken}",
    "step_chosen": "dump 数据中的第 {others} 步未比较；比较的是第 {taken} 步",
    "other_network": "dump 数据来自 {model}，而图是 {graph}",
    "other_time": "dump 数据来自 {model}，而图是 {graph}：二者不是同一次生成的",
    "no_dumps_of_graph": "{path}：没有 {graph} 的 dump 数据",
    "not_dumped": "{operators}没有 dump 数据，例如 {example}",
    "not_in_graph": "{operators}有 dump 数据但图中没有，未比较，例如 {example}",
    "shared_dumps": "{operators}未比较，例如 {names}：它们的 dump 文件同名，文件头、类型和形状都无法判断文件属于哪一个",
    "shared_references": "{tensors}未比较，例如 {example}：{names} 的参考文件同名，形状无法判断文件属于哪一个",
    "no_partner": "{tensors}在参考数据中没有对应项，例如 {example}",
    "not_whole": "L1 融合内部的{tensors}没有完整数据：{example}",
    "integers": "{operators}以整数计算，未比较，例如 {example}",
    "sizes_differ": "{tensor} 有 {target:,} 个元素，而参考中有 {reference:,} 个",
    "not_measured": "{tensors}未能比较：{problem}",
}

_NOUNS = {
    "tensor": "个张量",
    "operator": "个算子",
    "element": "个元素",
    "file": "个文件",
    "line": "行",
    "tensor file": "个张量文件",
    "part": "个部分",
    "pair": "对张量",
}


def remark_text(text: str, language: Language) -> str:
    """A remark in a language; a text of which nothing more is known stays as it is."""
    if language is Language.EN or not isinstance(text, Remark):
        return text
    parts = {name: _part(value, language) for name, value in text.parts.items()}
    return CHINESE[text.key].format_map(parts).strip()


def remark_texts(texts: Iterable[str], language: Language) -> list[str]:
    return [remark_text(text, language) for text in texts]


def _part(value: object, language: Language) -> object:
    if isinstance(value, Counted):
        return f" {value.number:,} {_NOUNS[value.noun]}"
    return remark_text(value, language) if isinstance(value, str) else value
