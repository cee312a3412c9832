"""What operators of GE, the compiler of Ascend devices, do with errors: its types in the families of `operations`."""

GE_FAMILIES: dict[str, str] = {
    "sum": "Add AddV2 AddN Adds Sub BiasAdd Axpy AccumulateNV2 Cumsum CumsumD Lerp",
    "product": "Mul Muls Square",
    "contraction": "MatMul MatMulV2 MatMulV3 BatchMatMul BatchMatMulV2 BatchMatMulV3 FullyConnection GEMM Einsum Dot",
    "convolution": "Conv2D Conv2DCompress Conv3D DepthwiseConv2D DepthwiseConv2DD Conv2DTranspose Conv2DTransposeD "
    "Conv2DBackpropInput Conv2DBackpropInputD Conv2DBackpropFilter Conv2DBackpropFilterD Deconvolution",
    "reduction": "ReduceSum ReduceSumD BNTrainingReduce L2Loss BiasAddGrad UnsortedSegmentSum UnsortedSegmentSumD",
    "average": "ReduceMean ReduceMeanD AvgPool AvgPoolV2 AvgPool3D GlobalAveragePool",
    "exponential": "Exp Expm1 Softmax SoftmaxV2 LogSoftmax LogSoftmaxV2 Sigmoid Sin Cos Tan Sinh Cosh "
    "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits SigmoidCrossEntropyWithLogits",
    "logarithm": "Log Log1p",
    "attention": "FlashAttentionScore PromptFlashAttention IncreFlashAttention FusedInferAttentionScore",
    "division": "RealDiv Div DivNoNan Reciprocal Rsqrt Sqrt Pow Xdivy",
    "normalization": "LayerNorm LayerNormV3 LayerNormGrad BatchNorm BNInfer BNTrainingUpdate BNTrainingUpdateV2 "
    "BNTrainingUpdateV3 BNTrainingReduceGrad BNTrainingUpdateGrad GroupNorm InstanceNorm RmsNorm L2Normalize",
    "recurrent": "DynamicRNN DynamicRNNV2 DynamicGRU DynamicGRUV2 BasicLSTMCell LSTM",
    "selection": "Gather GatherV2 GatherV2D GatherNd Slice SliceD StridedSlice StridedSliceD Split SplitD SplitV "
    "SplitVD Unpack TopK TopKV2 TopKD",
}
"""By the word of a family."""

GE_MOVING = frozenset(
    "Cast TransData Reshape Transpose TransposeD Permute Squeeze SqueezeV2 SqueezeV3 Unsqueeze UnsqueezeV2 "
    "UnsqueezeV3 ExpandDims Identity Concat ConcatD ConcatV2 ConcatV2D Pack Flatten FlattenV2 ReFormat TransShape "
    "MemcpyAsync BroadcastTo BroadcastToD Tile TileD SpaceToDepth DepthToSpace".split()
)
GE_CHOOSING = frozenset(
    "ArgMax ArgMaxD ArgMaxV2 ArgMin ArgMinD TopK TopKV2 TopKD Sort Greater GreaterEqual Less LessEqual Equal NotEqual "
    "Round Floor Ceil Rint Sign Cast NonMaxSuppressionV6 OneHot OneHotD LogicalAnd LogicalOr LogicalNot "
    "AscendQuant".split()
)
GE_RANDOM = frozenset(
    "DropOutGenMask DropOutGenMaskV3 DropOutGenMaskV4 StatelessDropOutGenMask DropOutV2 RandomUniform RandomUniformInt "
    "RandomStandardNormal RandomNormal TruncatedNormal TruncatedNormalV2 ParameterizedTruncatedNormal RandomGamma "
    "RandomPoisson RandomShuffle Multinomial Bernoulli StatelessRandomUniformV2 StatelessRandomNormalV2 "
    "StatelessTruncatedNormalV2 StatelessBernoulli".split()
)
"""What draws: two runs make other numbers, and nobody computed wrong."""
