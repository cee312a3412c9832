"""What executing an operation again must know of it, by the last part of its name without underscores.

torch.Tensor.__add__, torch.add, torch.Tensor.add_  ->  add
"""

from ulpscope.records.checks import Variant


def bare(op: str) -> str:
    """The operation's own word: `add` of torch.Tensor.__iadd__ and torch.add_."""
    parts = op.split(".")
    # An overload stands last in the name of a registered operator: aten.add.Tensor.
    overloaded = len(parts) == 3 and (parts[0] == "aten" or parts[-1] == "default" or parts[-1][:1].isupper())
    word = parts[-2] if overloaded else parts[-1]
    if word.startswith("__") and word.endswith("__"):
        inner = word[2:-2]
        return inner[1:] if inner.startswith("i") and inner[1:] in _IN_PLACE_DUNDERS else inner
    return word.strip("_")


_IN_PLACE_DUNDERS = frozenset("add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split())

# What gives elements of its inputs, or the correctly rounded truth: no arithmetic that rounds more than once.
EXACT = frozenset(
    """view reshape transpose permute flatten chunk split getitem setitem cat concat concatenate stack hstack vstack
    dstack column_stack row_stack copy clone detach contiguous to float half bfloat16 double type type_as expand
    expand_as squeeze unsqueeze select narrow fill zero flip fliplr flipud roll t T mT H mH swapaxes swapdims movedim
    moveaxis unflatten unfold as_strided unbind tensor_split hsplit vsplit dsplit tile repeat repeat_interleave
    broadcast_to view_as reshape_as index_select gather take take_along_dim masked_select masked_fill masked_scatter
    index_copy index_fill select_scatter slice_scatter diagonal_scatter diag diagonal diag_embed tril triu
    pixel_shuffle pixel_unshuffle channel_shuffle rot90 where relu relu6 abs absolute neg negative positive sign sgn
    floor ceil trunc fix round maximum minimum fmax fmin max min amax amin clamp clip clamp_min clamp_max threshold
    hardtanh sort msort topk kthvalue median nanmedian mode argmax argmin argsort cummax cummin aminmax max_pool1d
    max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d zeros ones full zeros_like ones_like full_like eye new_zeros new_ones
    new_full tensor as_tensor scalar_tensor embedding one_hot meshgrid
    atleast_1d atleast_2d atleast_3d
    nan_to_num signbit copysign gt lt ge le eq ne greater less greater_equal less_equal not_equal isnan isinf isfinite
    isposinf isneginf isreal logical_not logical_and logical_or logical_xor any all count_nonzero nonzero unique
    unique_consecutive bucketize searchsorted int long short char byte bool real imag view_as_real view_as_complex
    conj conj_physical resolve_conj resolve_neg ravel unsafe_chunk unsafe_split split_with_sizes T data item tolist
    frexp nextafter logical_and complex scatter block_diag cartesian_prod combinations
    ravel adjoint heaviside max_unpool1d max_unpool2d max_unpool3d""".split()
)

# Of complex numbers these are lengths and directions, which are computed.
COMPUTED_IF_COMPLEX = frozenset("abs absolute sgn".split())

# Given with one of these, a call that moves numbers computes them.
COMPUTING_KEYWORDS = frozenset("reduce decimals max_norm".split())

# Their gradient is what was sent, or 0, element by element.
PASSING_ON = frozenset(
    """clone contiguous relu relu6 threshold hardtanh clamp clip masked_fill index_fill fill floor ceil trunc fix round
    sign sgn heaviside nextafter detach neg negative positive view reshape transpose permute t""".split()
)

# Compares elements with a number that was rounded to the elements' own dtype.
COMPARING = frozenset(
    """gt lt ge le eq ne greater less greater_equal less_equal not_equal clamp clip clamp_min clamp_max threshold
    hardtanh""".split()
)

# Outputs that are places of elements: which of them, and along which of the call's dimensions they select.
SELECTING = frozenset(
    """argmax argmin argsort sort msort topk kthvalue median nanmedian mode max min cummax cummin
    max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d
    max_pool2d_with_indices""".split()
)

ALWAYS_RANDOM = frozenset(
    "rrelu multinomial poisson fractional_max_pool2d fractional_max_pool3d gumbel_softmax".split()
)
DROPPING = frozenset(
    """dropout alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d
    native_dropout""".split()
)

# What they give depends on the numbers that a dtype has: there is no higher precision to compute it in.
OF_OWN_DTYPE = frozenset("nextafter nan_to_num".split())

# Sizes of outputs are computed from their plain numbers, which therefore stay as they are; so are upsample_*.
SIZED_BY_NUMBERS = frozenset(
    "interpolate arange linspace logspace range fractional_max_pool2d fractional_max_pool3d".split()
)

# They write the whole of their first argument and read nothing of it.
OVERWRITING = frozenset(
    """copy fill zero uniform normal random bernoulli exponential geometric cauchy log_normal ones zeros eye constant
    dirac xavier_uniform xavier_normal kaiming_uniform kaiming_normal trunc_normal orthogonal sparse""".split()
)

# Contents are undefined, or nothing is computed.
WITHOUT_RESULT = frozenset(
    """empty empty_like empty_strided empty_permuted new_empty new_empty_strided new resize resize_as set
    pin_memory record_stream share_memory cpu cuda npu item_ requires_grad""".split()
)


def only_written(op: str, place: str) -> bool:
    """Whether a call reads nothing of what it finds there."""
    return place.startswith("kwargs.out") or (place == "args.0" and bare(op) in OVERWRITING)


# They run the backwards of other calls, which are tested with these.
STARTS_BACKWARD = frozenset(("torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"))

# Data that provokes what ordinary data hides, by operation.
STRESS: dict[str, tuple[Variant, ...]] = {
    **dict.fromkeys("layer_norm group_norm rms_norm instance_norm batch_norm".split(), (Variant.TINY, Variant.OFFSET)),
    **dict.fromkeys("normalize cosine_similarity".split(), (Variant.TINY,)),
    **dict.fromkeys("var std var_mean std_mean".split(), (Variant.OFFSET,)),
    **dict.fromkeys("mean sum".split(), (Variant.LARGE, Variant.LONG)),
    **dict.fromkeys("softmax log_softmax logsumexp".split(), (Variant.OFFSET, Variant.LONG)),
    **dict.fromkeys("linear matmul mm bmm".split(), (Variant.LONG,)),
    **dict.fromkeys("norm vector_norm".split(), (Variant.TINY, Variant.LARGE)),
    **dict.fromkeys("gelu silu sigmoid tanh".split(), (Variant.TINY,)),
}


OPERATOR_LIBRARIES = ("aten", "prims")
"""Libraries of operators that torch itself brings."""


def is_in_script(op: str) -> bool:
    """Whether a script that imports torch has this operation; one of the user's own it has not."""
    return op.partition(".")[0] in ("torch", "torch_npu", *OPERATOR_LIBRARIES)
