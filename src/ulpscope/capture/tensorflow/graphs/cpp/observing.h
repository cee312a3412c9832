// The operation that reads results: no output, so that nothing can depend on what it does.
#pragma once
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
    .Attr("constant: bool")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); });

class Observe : public tensorflow::OpKernel {
 public:
  explicit Observe(tensorflow::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("graph", &graph_));
    OP_REQUIRES_OK(construction, construction->GetAttr("node", &node_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slots", &slots_));
    OP_REQUIRES_OK(construction, construction->GetAttr("constant", &constant_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    if (!records().is_wanted()) return;
    const auto where = context->frame_iter();
    const int64_t frame = (int64_t)where.frame_id, iteration = (int64_t)where.iter_id;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Place place = {context->step_id(), graph_, node_, slots_[i], frame, iteration};
      if (constant_) {
        std::lock_guard<std::mutex> one(knowing_);
        records().add(place, context->input(i), &known_);
      } else {
        records().add(place, context->input(i), nullptr);
      }
    }
  }

 private:
  int64_t graph_, node_;
  std::vector<int64_t> slots_;
  bool constant_;
  std::mutex knowing_;
  std::unique_ptr<Record> known_;
};

REGISTER_KERNEL_BUILDER(Name("UlpscopeObserve").Device(tensorflow::DEVICE_CPU), Observe);

}  // namespace ulpscope
