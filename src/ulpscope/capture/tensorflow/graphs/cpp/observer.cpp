// What Python calls; loading.py puts the numbers of limits.py and of summaries before this text.
#include "adding.h"

using ulpscope::graphs;
using ulpscope::Record;
using ulpscope::records;
using ulpscope::unwanted;

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void ulpscope_teach(int dtype, void* kernel, const int32_t* table, int64_t normal, int64_t parts) {
  records().teach(dtype, {kernel, table, normal, parts});
}
EXPORTED void ulpscope_limit(int64_t count, int64_t data_bytes) { records().limit(count, data_bytes); }
EXPORTED void ulpscope_want(int what) { records().want((ulpscope::What)what); }
EXPORTED void ulpscope_leave_out(const char* names) { unwanted().choose(names); }
EXPORTED int64_t ulpscope_detach() { return records().detach(); }
EXPORTED void ulpscope_copy(Record* target) { records().copy(target); }
EXPORTED void ulpscope_let_go(void* data, int64_t nbytes) { records().let_go(data, nbytes); }
EXPORTED int64_t ulpscope_dropped_rows() { return records().dropped_rows(); }
EXPORTED int64_t ulpscope_dropped_data() { return records().dropped_data(); }
EXPORTED int64_t ulpscope_graphs() { return graphs().count(); }
EXPORTED const char* ulpscope_graph(int64_t number, int part, int64_t* size) {
  const std::string& text = graphs().part(number, part);
  *size = (int64_t)text.size();
  return text.data();
}
