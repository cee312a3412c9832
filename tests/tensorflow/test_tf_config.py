"""precision_tool.tf_config's names with real TensorFlow: the same fields of the same types, the same files."""

import json
import os
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ulpscope.compat.tf_config as npu_tf_config
from ulpscope.compat import telling
from ulpscope.dialects.reference import reference_tensors
from ulpscope.workflows.tf_runs.settings import DUMP_FLAG, OVERFLOW_FLAG

v1 = tf.compat.v1
DUMP = "precision_data/npu/debug_0/dump"
OVERFLOW = "precision_data/overflow/dump"
CONSTANT = {"use_off_line": ("b", True), "debug_dir": ("s", b"precision_data/npu/debug_0")}
DUMPING = {
    "enable_dump": ("b", True),
    "dump_mode": ("s", b"all"),
    "dump_path": ("s", DUMP.encode()),
    "op_debug_level": ("i", 4),
    "dump_step": ("s", b"0"),
}
DETECTING = {
    "enable_dump_debug": ("b", True),
    "dump_debug_mode": ("s", b"all"),
    "dump_path": ("s", OVERFLOW.encode()),
    "op_debug_level": ("i", 4),
}
OFF = {"fusion_switch_file": ("s", npu_tf_config.FUSION_OFF_FILE.encode())}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in; what a test sets in the environment is gone after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(telling, "_TOLD", set())
    before = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def npu_optimizers(config: Any) -> list[Any]:
    return [each for each in config.graph_options.rewrite_options.custom_optimizers if each.name == "NpuOptimizer"]


def parameters(config: Any) -> dict[str, tuple[str, Any]]:
    """Each parameter with the field of the protobuf that holds it."""
    (optimizer,) = npu_optimizers(config)
    kinds = {name: value.WhichOneof("value") for name, value in optimizer.parameter_map.items()}
    return {name: (kind, getattr(optimizer.parameter_map[name], kind)) for name, kind in kinds.items()}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("dump", DUMPING),
        ("overflow", DETECTING),
        ("fusion_off", OFF),
        ("dump|fusion_off", {**DUMPING, **OFF}),
        ("overflow|fusion_off", {**DETECTING, **OFF}),
        # An overflow is looked for rather than a dump made.
        ("dump|overflow", DETECTING),
        (None, {}),
    ],
)
def test_session_config_has_each_parameter_in_its_type(action: str | None, expected: dict[str, Any]) -> None:
    config = npu_tf_config.session_dump_config(action=action)
    assert isinstance(config, v1.ConfigProto)
    assert parameters(config) == {**CONSTANT, **expected}
    assert config.graph_options.rewrite_options.remapping == 2  # RewriterConfig.OFF


@pytest.mark.parametrize(("flag", "expected"), [(DUMP_FLAG, DUMPING), (OVERFLOW_FLAG, DETECTING)])
def test_flags_decide_where_no_action_is_named(
    flag: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flag, "True")
    assert parameters(npu_tf_config.session_dump_config()) == {**CONSTANT, **expected}
    assert parameters(npu_tf_config.session_dump_config(action="fusion_off")) == {**CONSTANT, **OFF}
    monkeypatch.setenv(flag, "true")
    assert parameters(npu_tf_config.session_dump_config()) == CONSTANT


def test_keys_of_the_configuration_arrive(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "mine.yaml").write_text("OP_DEBUG_LEVEL: 0\nTF_DUMP_STEP: 7\nROOT_DIR: /data\n", encoding="utf-8")
    monkeypatch.setenv("PRECISION_TOOL_CONFIG", "mine.yaml")
    monkeypatch.setenv("TF_DUMP_STEP", "0|5-6")
    monkeypatch.setenv("PRECISION_TOOL_DATA_ROOT_DIR", "elsewhere")
    found = parameters(npu_tf_config.session_dump_config(action="dump"))
    assert found["op_debug_level"] == ("i", 0)
    assert found["dump_step"] == ("s", b"0|5-6")
    assert found["dump_path"] == ("s", b"elsewhere/npu/debug_0/dump")
    monkeypatch.setenv("TF_DUMP_STEP", "")
    assert parameters(npu_tf_config.session_dump_config(action="dump"))["dump_step"] == ("s", b"")


def test_profiling_is_added_as_json() -> None:
    found = parameters(npu_tf_config.session_dump_config(action="overflow|prof"))
    assert {**CONSTANT, **DETECTING}.items() <= found.items()
    assert found["profiling_mode"] == ("b", True)
    options = json.loads(found["profiling_options"][1])
    assert options["output"] == "precision_data/npu/debug_0/prof"
    assert (options["task_trace"], options["aic_metrics"]) == ("on", "PipeUtilization")


def test_a_given_config_keeps_what_it_says() -> None:
    config = v1.ConfigProto(allow_soft_placement=True, inter_op_parallelism_threads=3)
    custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
    custom_op.name = "NpuOptimizer"
    custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("allow_mix_precision")
    custom_op.parameter_map["loss_scale"].f = 2.5
    found = npu_tf_config.session_dump_config(config, action="dump")
    assert found is config
    assert (config.allow_soft_placement, config.inter_op_parallelism_threads) == (True, 3)
    own = {"precision_mode": ("s", b"allow_mix_precision"), "loss_scale": ("f", 2.5)}
    assert parameters(config) == {**CONSTANT, **DUMPING, **own}


def test_a_custom_op_of_the_script_is_updated() -> None:
    config = v1.ConfigProto()
    custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
    custom_op.name = "NpuOptimizer"
    assert npu_tf_config.update_custom_op(custom_op, action="overflow") is custom_op
    assert parameters(config) == {"debug_dir": CONSTANT["debug_dir"], **DETECTING}
    assert config.graph_options.rewrite_options.remapping == 0


def test_every_name_has_the_compiler_write_its_graphs(folder: Path) -> None:
    for name in ("DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_PATH", "NPU_DUMP_GRAPH"):
        os.environ.pop(name, None)
    npu_tf_config.session_dump_config()
    graph = "precision_data/npu/debug_0/graph"
    assert (os.environ["DUMP_GE_GRAPH"], os.environ["DUMP_GRAPH_LEVEL"]) == ("2", "3")
    assert (os.environ["DUMP_GRAPH_PATH"], os.environ["NPU_DUMP_GRAPH"]) == (graph, "true")
    assert all((folder / each).is_dir() for each in (graph, DUMP, OVERFLOW))


def test_the_script_runs_on_without_an_npu(capsys: pytest.CaptureFixture[str]) -> None:
    config = npu_tf_config.session_dump_config(action="dump|fusion_switch")
    with tf.Graph().as_default(), v1.Session(config=config) as sess:
        assert sess.run(tf.constant(2.0) * 3.0) == 6.0
    told = capsys.readouterr().err
    assert "session_dump_config: neither npu_bridge nor npu_device is installed here" in told


def small_graph() -> tuple[Any, Any, Any, Any]:
    x = v1.placeholder(tf.float32, [2, 3], name="in/x")
    weights = v1.get_variable("w", initializer=tf.constant(np.arange(12, dtype=np.float32).reshape(3, 4)))
    loss = tf.reduce_sum(tf.linalg.matmul(x, weights, name="fc/MatMul"), name="loss")
    train = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
    return x, weights, loss, train


FED = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]], dtype=np.float32)
PRODUCT = FED @ np.arange(12, dtype=np.float32).reshape(3, 4)


def dumped(root: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by operators; those of variables' handles hold none."""
    found = reference_tensors(root)
    assert found is not None
    stored = {each.op: each.stored() for each in found}
    return {name: tensor.array() for name, tensor in stored.items() if tensor.dtype != "resource"}


def test_a_dumped_session_gives_the_same_and_leaves_every_tensor(folder: Path) -> None:
    with tf.Graph().as_default():
        x, _, loss, train = small_graph()
        with v1.Session() as plain:
            plain.run(v1.global_variables_initializer())
            sess = npu_tf_config.sess_dump(plain)
            found, _ = sess.run([loss, train], {x: FED})
    assert found == PRODUCT.sum()
    arrays = dumped(folder / "precision_data/tf/tf_debug")
    np.testing.assert_array_equal(arrays["fc/MatMul"], PRODUCT)
    assert any(name.startswith("gradients/") for name in arrays)


def test_sessions_of_one_script_dump_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = folder / "precision_data/tf/tf_debug"
    (first / "run_1_0").mkdir(parents=True)
    with tf.Graph().as_default(), v1.Session() as one, v1.Session() as other:
        npu_tf_config.sess_dump(one).run(tf.constant(1.0) + 1.0)
        npu_tf_config.sess_dump(other).run(tf.constant(2.0) + 1.0)
    assert [path.name for path in first.iterdir()] == ["run_1_0"]
    runs = {path.name: len(list(path.glob("run_*"))) for path in first.parent.glob("tf_debug-*")}
    assert runs == {"tf_debug-2": 1, "tf_debug-3": 1}
    assert f"{first} is in use" in capsys.readouterr().err


def test_the_hook_serves_a_monitored_session(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tf.Graph().as_default():
        x, _, loss, train = small_graph()
        hook = npu_tf_config.estimator_dump()
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as sess:
            assert sess.run([loss, train], {x: FED})[0] == PRODUCT.sum()
    np.testing.assert_array_equal(dumped(folder / "precision_data/tf/tf_debug")["fc/MatMul"], PRODUCT)
    told = capsys.readouterr().err
    assert ("has no tf.estimator" in told) is not hasattr(tf, "estimator")


def test_a_tensorflow_without_the_debugger_says_so_and_runs_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("dumping_wrapper", "hooks"):
        monkeypatch.setitem(sys.modules, f"tensorflow.python.debug.wrappers.{module}", None)
    with tf.Graph().as_default(), v1.Session() as plain:
        assert npu_tf_config.sess_dump(plain) is plain
    assert isinstance(npu_tf_config.estimator_dump(), v1.train.SessionRunHook)
    told = capsys.readouterr().err
    assert "dumping_wrapper.DumpingDebugWrapperSession is missing in this TensorFlow" in told


def test_a_precision_session_keeps_inputs_and_a_checkpoint(folder: Path) -> None:
    with tf.Graph().as_default():
        x, weights, loss, train = small_graph()
        with npu_tf_config.PrecisionTfSession() as sess:
            sess.run(v1.global_variables_initializer())
            assert sess.run([loss, train], feed_dict={x: FED})[0] == PRODUCT.sum()
            operations = len(sess.graph.get_operations())
            trained = sess.run(weights)
            assert len(sess.graph.get_operations()) == operations
    root = folder / "precision_data/tf/checkpoints"
    np.testing.assert_array_equal(np.load(root / "input/in_x_0.npy"), FED)
    with tf.Graph().as_default() as graph, v1.Session() as sess:
        saver = v1.train.import_meta_graph(f"{v1.train.latest_checkpoint(str(root))}.meta")
        saver.restore(sess, str(root / "ckpt"))
        np.testing.assert_array_equal(sess.run(v1.global_variables()[0]), trained)
        assert len(graph.get_collection(v1.GraphKeys.TRAIN_OP)) == 1


def test_a_precision_session_never_ends_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "precision_data/tf").mkdir(parents=True)
    (folder / "precision_data/tf/checkpoints").write_text("a file in the place of the folder", encoding="utf-8")
    with tf.Graph().as_default():
        x, _, loss, _ = small_graph()
        with npu_tf_config.PrecisionTfSession() as sess:
            sess.run(v1.global_variables_initializer())
            assert sess.run(loss, {x: FED}) == PRODUCT.sum()
            with pytest.raises(tf.errors.InvalidArgumentError):
                sess.run(loss)
    assert "no checkpoint" in capsys.readouterr().err
    assert "in the place" in (folder / "precision_data/tf/checkpoints").read_text(encoding="utf-8")


def test_seeds_are_those_of_every_generator() -> None:
    def drawn(**seed: int) -> tuple[float, float, float]:
        npu_tf_config.seed_everything(**seed)
        return random.random(), float(np.random.rand()), float(tf.random.uniform([]))

    first, other = drawn(seed=7), drawn(seed=8)
    assert drawn(seed=7) == first
    assert all(one != two for one, two in zip(first, other, strict=True))
    assert drawn() == drawn(seed=2022)
    assert os.environ["PYTHONHASHSEED"] == "2022"


class Scaled(tf.keras.optimizers.SGD):  # type: ignore[misc]
    """Stands for the NPU's loss scale optimizer."""

    loss_scale = tf.Variable(1024.0)
    last_step_finite = tf.Variable(True)


def test_the_loss_scale_is_printed_before_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = Scaled(0.1)
    model.compile(optimizer, "mse")
    model.fit(
        np.ones((4, 2), np.float32),
        np.ones((4, 1), np.float32),
        batch_size=2,
        verbose=0,
        callbacks=[npu_tf_config.NpuPrintLossScaleCallBack(optimizer)],
    )
    line = "PrecisionTool: Train steps {}, loss_scale=1024.000 / not_overflow_status=True"
    assert capsys.readouterr().out.splitlines() == [line.format(0), line.format(1)]


def recorded(name: str) -> Any:
    """Stands for a class or function of the vendor: records what it is given."""

    def record(*args: Any, **options: Any) -> Any:
        return types.SimpleNamespace(called=name, args=args, options=options)

    return record


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """npu_bridge as scripts import it."""
    package, module = types.ModuleType("npu_bridge"), types.ModuleType("npu_bridge.npu_init")
    for name in ("DumpConfig", "NPURunConfig", "npu_config_proto", "set_keras_session_npu_config"):
        setattr(module, name, recorded(name))
    monkeypatch.setitem(sys.modules, "npu_bridge", package)
    monkeypatch.setitem(sys.modules, "npu_bridge.npu_init", module)
    return module


def test_estimator_scripts_of_the_npu(npu: Any) -> None:
    config = npu.NPURunConfig(dump_config=npu_tf_config.estimator_dump_config(action="dump"))
    given = {"enable_dump": True, "dump_path": DUMP, "dump_step": "0", "dump_mode": "all"}
    assert (config.options["dump_config"].called, config.options["dump_config"].options) == ("DumpConfig", given)
    both = npu_tf_config.estimator_dump_config(action="overflow|dump").options
    assert both == {"enable_dump_debug": True, "dump_path": OVERFLOW, "dump_mode": "all"}
    assert npu_tf_config.estimator_dump_config(action="fusion_off").options == {}
    off = npu.NPURunConfig(fusion_switch_file=npu_tf_config.FUSION_OFF_FILE).options["fusion_switch_file"]
    stages = json.loads(Path(off).read_text(encoding="utf-8"))["Switch"]
    assert stages == {"GraphFusion": {"ALL": "off"}, "UBFusion": {"ALL": "off"}}
    chosen = Path(npu.NPURunConfig(fusion_switch_file=npu_tf_config.FUSION_SWITCH_FILE).options["fusion_switch_file"])
    assert json.loads(chosen.read_text(encoding="utf-8")) == {"Switch": {"GraphFusion": {}, "UBFusion": {}}}
    chosen.write_text("mine", encoding="utf-8")
    assert Path(npu_tf_config.FUSION_SWITCH_FILE) == chosen
    assert chosen.read_text(encoding="utf-8") == "mine"


def test_ported_scripts_of_the_npu(npu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """As the porting tool leaves them: a ConfigProto goes through the vendor's functions."""
    config = npu_tf_config.session_dump_config(v1.ConfigProto(), action="overflow")
    passed = npu.npu_config_proto(config_proto=config).options["config_proto"]
    assert parameters(passed) == {**CONSTANT, **DETECTING}
    keras = npu.set_keras_session_npu_config(config=npu_tf_config.session_dump_config(action="dump"))
    assert parameters(keras.options["config"]) == {**CONSTANT, **DUMPING}
    run_config = recorded("RunConfig")(session_config=npu_tf_config.session_dump_config(action="fusion_switch"))
    kind, value = parameters(run_config.options["session_config"])["fusion_switch_file"]
    assert (kind, value.decode()) == ("s", npu_tf_config.FUSION_SWITCH_FILE)
    assert "npu_bridge" not in capsys.readouterr().err
