"""Feeds damaged Ascend files to their readers: each must give a clear error or an answer, soon and in little memory.

    python benchmarks/ascend_hostile.py --files 100000 [--case dump] [--first 0]

File number N of a case is always the same: `--first N --files 1` repeats it. A reader may raise UlpscopeError and
nothing else, may take SECONDS, and may not need more than MEMORY beyond what the process had. To add a kind of files,
add a line to CASES: some sound files, and a function that reads one from a path and looks at all of it.
"""

import argparse
import multiprocessing
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ascend_hostile_graphs import GRAPH_CASES
from ascend_hostile_references import REFERENCE_CASES
from make_ascend_dumps import Tensor, file_bytes
from ulpscope.dialects.ascend.dump_file import read_dump, write_dump
from ulpscope.dialects.ascend.logical import has_data, logical_array, logical_form
from ulpscope.dialects.ascend.stats_file import read_stats
from ulpscope.dialects.ascend.tree import read_mapping
from ulpscope.records.errors import UlpscopeError

SECONDS = 5
MEMORY = 512 * 2**20
BATCH = 2000
EXTREMES = (0, 1, 2**7 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Case:
    """One kind of files."""

    sound: Callable[[], Sequence[bytes]]
    read: Callable[[Path], None]


def sound_dumps() -> list[bytes]:
    half = np.linspace(-4, 4, 3 * 16 * 16, dtype=np.float16).reshape(3, 1, 16, 16)
    picture = np.arange(2 * 4 * 4 * 16, dtype=np.float16).reshape(2, 1, 4, 4, 16)
    packed = np.arange(16, dtype=np.uint8)
    plain = file_bytes(
        "fc1/Relu", inputs=[Tensor(half, "FRACTAL_NZ", (2, 40))], outputs=[Tensor(picture, "NC1HWC0", (2, 4, 4, 6))]
    )
    small = file_bytes("quant", outputs=[Tensor(packed, code=code, shape=(20,)) for code in (28, 29, 33, 37, 39, 40)])
    inline = file_bytes("old", inputs=[Tensor(half)], outputs=[Tensor(picture)], version="1.0")
    return [plain, small, inline]


def sound_nano() -> list[bytes]:
    def tlv(tag: int, content: bytes) -> bytes:
        return struct.pack("<II", tag, len(content)) + content

    data = np.arange(12, dtype=np.float32)
    shapes = tlv(0, struct.pack("<2Q", 3, 4)) + tlv(1, struct.pack("<2Q", 3, 4))
    read = struct.pack("<3i3QI", 0, 2, 0, 4096, 0, data.nbytes, len(shapes)) + shapes
    named = shapes + tlv(2, b"double/Mul")
    made = struct.pack("<6i3QI", 0, 2, 0, 0, 0, 2, 8192, 0, data.nbytes, len(named)) + named
    head = struct.pack("<II", 0x5A5A5A5A, 0) + tlv(4, struct.pack("<I", 1) + read) + tlv(5, struct.pack("<I", 1) + made)
    return [struct.pack("<Q", len(head)) + head + data.tobytes() * 2]


def sound_stats() -> list[bytes]:
    head = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count\n"
    rows = "Input,0,160,DT_FLOAT16,ND,2x40,4.5,-4.5,0.1,80,0\nOutput,0,160,DT_BF16,ND,2x40,inf,nan,,80,1\n"
    return [(head + rows).encode()]


def sound_mapping() -> list[bytes]:
    return [b"3707385569123341,Add.tower_0_add.29.0.1767225600029123\n12,Relu.x.1.1767225600029124\n"]


def look_at_dump(path: Path) -> None:
    """Every tensor in every form, and the file written again; a tensor that cannot be had must say so."""
    dump = read_dump(path)
    write_dump(dump)
    for tensor in dump.tensors:
        try:
            tensor.array().tobytes()
            if has_data(tensor):
                logical_array(tensor, logical_form(tensor)).tobytes()
        except UlpscopeError:
            continue


CASES: dict[str, Case] = {
    "dump": Case(sound_dumps, look_at_dump),
    "nano": Case(sound_nano, look_at_dump),
    "stats": Case(sound_stats, lambda path: [tensor.dtype for tensor in read_stats(path)] and None),
    "mapping": Case(sound_mapping, lambda path: read_mapping(path) and None),
    **{name: Case(*case) for name, case in (REFERENCE_CASES | GRAPH_CASES).items()},
}


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """Some damages of some kinds, one after the other."""
    damage = bytearray(content)
    for _ in range(int(random.integers(1, 5))):
        DAMAGES[int(random.integers(len(DAMAGES)))](damage, random)
    return bytes(damage)


def _at(damage: bytearray, random: np.random.Generator, width: int = 1) -> int:
    """A place, more often near the beginning, where lengths and types are."""
    room = max(len(damage) - width, 1)
    return int(room * random.random() ** 3)


def flip_bit(damage: bytearray, random: np.random.Generator) -> None:
    if damage:
        damage[_at(damage, random)] ^= 1 << int(random.integers(8))


def set_byte(damage: bytearray, random: np.random.Generator) -> None:
    if damage:
        damage[_at(damage, random)] = int(random.choice([0, 1, 0x7F, 0x80, 0xFF, 0x5A, ord("{"), ord('"')]))


def set_number(damage: bytearray, random: np.random.Generator) -> None:
    width = int(random.choice([4, 8]))
    if len(damage) > width:
        place = _at(damage, random, width)
        number = EXTREMES[int(random.integers(len(EXTREMES)))] % 2 ** (8 * width)
        damage[place : place + width] = number.to_bytes(width, "little")


def cut_off(damage: bytearray, random: np.random.Generator) -> None:
    del damage[int(random.integers(len(damage) + 1)) :]


def cut_out(damage: bytearray, random: np.random.Generator) -> None:
    place = _at(damage, random)
    del damage[place : place + int(random.integers(1, 32))]


def repeat(damage: bytearray, random: np.random.Generator) -> None:
    place = _at(damage, random)
    part = damage[place : place + int(random.integers(1, 64))]
    damage[place:place] = part * int(random.choice([1, 2, 50]))


def insert_varint(damage: bytearray, random: np.random.Generator) -> None:
    length = int(random.integers(1, 12))
    damage[_at(damage, random) : 0] = bytes([0xFF] * (length - 1) + [int(random.integers(256))])


def append(damage: bytearray, random: np.random.Generator) -> None:
    damage += random.bytes(int(random.integers(1, 200)))


DAMAGES = (flip_bit, flip_bit, set_byte, set_number, cut_off, cut_out, repeat, insert_varint, append)


def make(case: str, number: int) -> bytes:
    """File `number` of a case."""
    sound = CASES[case].sound()
    random = np.random.default_rng([number, sum(case.encode())])
    return damaged(sound[number % len(sound)], random)


def outcome(case: str, path: Path) -> str:
    """What a reader makes of a file: `answer`, `error`, or what is wrong with it."""
    signal.alarm(SECONDS)
    try:
        CASES[case].read(path)
        return "answer"
    except UlpscopeError as error:
        return "error" if error.seen and error.expected and error.next_step else "an error that does not say enough"
    except TimeoutError:
        return "hangs"
    except BaseException:  # whatever else a reader raises is what is looked for here
        return traceback.format_exc(limit=-3)
    finally:
        signal.alarm(0)


def _time_out(number: int, frame: object) -> None:
    raise TimeoutError


def run_batch(case: str, numbers: range, results: "multiprocessing.SimpleQueue[tuple[int, str]]") -> None:
    """In a process of its own, with little memory: reads a range of files and reports each that is not sound."""
    signal.signal(signal.SIGALRM, _time_out)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "Relu.fc1_Relu.21.0.1767225600021123"
        for number in numbers:
            path.write_bytes(make(case, number))
            results.put((number, outcome(case, path)))


def check(case: str, first: int, files: int) -> tuple[Counter[str], dict[int, str]]:
    """Counts of outcomes, and the files that went wrong."""
    counts: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    for start in range(first, first + files, BATCH):
        numbers = range(start, min(start + BATCH, first + files))
        reached = numbers.start
        for number, found in _in_process(case, numbers):
            counts[found if found in ("answer", "error") else "wrong"] += 1
            if found not in ("answer", "error"):
                wrong[number] = found
            reached = number + 1
        if reached < numbers.stop:
            wrong[reached] = "the process died"
            counts["wrong"] += 1
    return counts, wrong


def _in_process(case: str, numbers: range) -> Iterator[tuple[int, str]]:
    results: multiprocessing.SimpleQueue[tuple[int, str]] = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=run_batch, args=(case, numbers, results))
    process.start()
    for _ in numbers:
        while results.empty():
            if not process.is_alive() and results.empty():
                process.join()
                return
            time.sleep(0.001)
        yield results.get()
    process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="of each case")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", choices=CASES, action="append")
    args = parser.parse_args()
    failed = False
    for case in args.case or CASES:
        started = time.perf_counter()
        counts, wrong = check(case, args.first, args.files)
        told = ", ".join(f"{count:,} {word}" for word, count in sorted(counts.items()))
        print(f"{case:<10} {told} in {time.perf_counter() - started:.0f} s", flush=True)
        for number, why in list(wrong.items())[:5]:
            print(f"  file {number}: {why}")
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
