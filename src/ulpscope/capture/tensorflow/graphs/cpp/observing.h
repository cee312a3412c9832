// The operation that reads results: no output, so that nothing can depend on what it does.
#pragma once
#include "graphs.h"
#include "records.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace ulpscope {

constexpr char OBSERVE[] = "UlpscopeObserve";

// Stateful: nothing prunes it, folds it, or takes one for another.
REGISTER_OP("UlpscopeObserve")
    .Input("results: T")
    .Attr("T: list(type) >= 1")
    .Attr("graph: int")
    .Attr("node: int")
    .Attr("slots: list(int)")
    .Attr("same_as: int")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); });

class Observe : public tensorflow::OpKernel {
 public:
  explicit Observe(tensorflow::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("graph", &graph_));
    OP_REQUIRES_OK(construction, construction->GetAttr("node", &node_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slots", &slots_));
    int64_t same_as = -1;
    OP_REQUIRES_OK(construction, construction->GetAttr("same_as", &same_as));
    asked_again_ = graphs().known(graph_, node_);
    known_ = graphs().known(graph_, same_as);
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    if (!records().is_wanted()) return;
    const auto where = context->frame_iter();
    const int64_t frame = (int64_t)where.frame_id, iteration = (int64_t)where.iter_id;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Place place = {context->step_id(), graph_, node_, slots_[i], frame, iteration};
      const bool is_first = slots_[i] == 0;
      records().add(place, context->input(i), is_first ? known_ : nullptr, is_first ? asked_again_ : nullptr);
    }
  }

 private:
  int64_t graph_, node_;
  std::vector<int64_t> slots_;
  Known *known_, *asked_again_;  // of the first result
};

REGISTER_KERNEL_BUILDER(Name("UlpscopeObserve").Device(tensorflow::DEVICE_CPU), Observe);

}  // namespace ulpscope
