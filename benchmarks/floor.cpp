// The least that reading a trace can cost: walk over every event with simdjson's on-demand parser and look at what any
// reader must look at. Prints events, CPU seconds and the memory added (MiB). The text is read from disk before the clock starts.
#include <simdjson.h>

#include <cstdio>
#include <ctime>
#include <string_view>
#include <sys/resource.h>

using namespace simdjson;

static long peak_kib() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

int main(int, char **argv) {
    padded_string text = padded_string::load(argv[1]);
    long before = peak_kib();
    clock_t start = clock();
    ondemand::parser parser;
    auto document = parser.iterate(text);
    long events = 0;
    double sum = 0;
    for (ondemand::object event : document["traceEvents"].get_array()) {
        events++;
        for (auto field : event) {
            std::string_view key = field.unescaped_key();
            if (key == "ts" || key == "dur")
                sum += double(field.value());
            else if (key == "ph" || key == "cat" || key == "name")
                sum += double(std::string_view(field.value()).size());
            else if (key == "args")
                for (auto arg : field.value().get_object())
                    sum += double(std::string_view(arg.unescaped_key()).size());
        }
    }
    double seconds = double(clock() - start) / CLOCKS_PER_SEC;
    std::printf("%ld %.6f %.1f %g\n", events, seconds, double(peak_kib() - before) / 1024, sum);
}
