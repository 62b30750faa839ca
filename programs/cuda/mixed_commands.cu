// nvcc-arch: compute_90
// Runs of launches, which may go to the device together, and between them all else that a stream takes: launches with attributes (clusters, cooperative,
// programmatic, priority), events, fills, copies, memory in stream order, host functions, captures and graphs; at random, the same on every machine.
//
//     mixed_commands [SEED]
//
// An array belongs to one stream at a time and goes to another only behind an order that CUDA promises: an event that is waited for, there or by the host, or
// the default stream's with blocking ones. So all results are those of the steps one after the other, as the host does them too.
#include "mixed_commands/steps.h"

#include <utility>

constexpr unsigned LAUNCHES = 5000;
// What comes often goes together.
constexpr unsigned RUN_LENGTHS[] = {1, 2, 3, 4, 4, 7, 8, 8, 12, 16, 20, 33};
constexpr unsigned MOST_TEMPORARY = 4, MOST_GRAPHS = 3, MOST_TIMED = 16;

// An executable graph: steps on two arrays, beside them others on two others, then some on all four.
struct Graph {
    cudaGraphExec_t executable;
    std::vector<unsigned> arrays;
    std::vector<Step> one, other, joined;
};

struct Timed {
    cudaEvent_t begin, end;
};

enum Stream : unsigned { DEFAULT, BLOCKING, OTHER_BLOCKING, URGENT, LAZY, STREAMS };

// Arrays that are there all the time; they alone are in graphs.
constexpr unsigned LASTING = STREAMS + 3;

class Mix {
  public:
    explicit Mix(unsigned seed) : random_(seed) {
        int least, greatest;
        CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        streams_[DEFAULT] = nullptr;
        CHECK(cudaStreamCreate(&streams_[BLOCKING]));
        CHECK(cudaStreamCreate(&streams_[OTHER_BLOCKING]));
        CHECK(cudaStreamCreateWithPriority(&streams_[URGENT], cudaStreamNonBlocking, greatest));
        CHECK(cudaStreamCreateWithPriority(&streams_[LAZY], cudaStreamNonBlocking, least));
        for (cudaEvent_t &mark : marks_) {
            CHECK(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));
        }
        for (unsigned index = 0; index < LASTING; ++index) {
            Array array = {nullptr, std::vector<unsigned>(COUNT), index % STREAMS};
            std::generate(array.expected.begin(), array.expected.end(), [&] { return random_.next(); });
            CHECK(cudaMalloc(&array.device, COUNT * sizeof(unsigned)));
            CHECK(cudaMemcpy(array.device, array.expected.data(), COUNT * sizeof(unsigned), cudaMemcpyHostToDevice));
            memory_.arrays.push_back(array);
        }
    }

    ~Mix() {
        std::for_each(graphs_.begin(), graphs_.end(), [](Graph &graph) { CHECK(cudaGraphExecDestroy(graph.executable)); });
        std::for_each(marks_, marks_ + STREAMS, [](cudaEvent_t mark) { CHECK(cudaEventDestroy(mark)); });
        std::for_each(streams_ + 1, streams_ + STREAMS, [](cudaStream_t stream) { CHECK(cudaStreamDestroy(stream)); });
    }

    void run() {
        while (memory_.launches() < LAUNCHES) {
            const unsigned stream = below(STREAMS);
            // Of one length, several times.
            const unsigned length = RUN_LENGTHS[below(std::size(RUN_LENGTHS))];
            for (unsigned rounds = 1 + below(6); rounds > 0; --rounds) {
                prepare(stream);
                launch_many(stream, length);
                interrupt(stream);
            }
        }
    }

    // What the device has computed in the end.
    Checksum finish() {
        CHECK(cudaDeviceSynchronize());
        check_times(0);
        return memory_.check_all();
    }

    unsigned launches() const { return memory_.launches(); }

  private:
    unsigned below(unsigned bound) { return random_.below<unsigned>(bound); }

    Map any_map() { return {below(1u << 16) * 2 + 1, below(1u << 20)}; }

    unsigned any_of(const std::vector<unsigned> &arrays) { return arrays[below(static_cast<unsigned>(arrays.size()))]; }

    std::vector<unsigned> arrays_of(unsigned stream) const {
        std::vector<unsigned> found;
        for (unsigned index = 0; index < memory_.arrays.size(); ++index) {
            if (memory_.arrays[index].stream == stream) {
                found.push_back(index);
            }
        }
        return found;
    }

    // ---- Steps ----

    Step any_launch(const std::vector<unsigned> &arrays) {
        Step step = {static_cast<Kind>(below(4)), any_of(arrays), any_of(arrays), 0, 0, 0, 0, any_map()};
        if (step.kind == Kind::Combine && step.to == step.from) {
            step.kind = Kind::Apply;
        }
        return step;
    }

    Step any_launch_with_attributes(const std::vector<unsigned> &arrays) {
        const Kind kind = static_cast<Kind>(static_cast<unsigned>(Kind::ApplyInCluster) + below(4));
        return {kind, any_of(arrays), 0, 0, 0, 0, 2u << below(2), any_map()};
    }

    // A fill, a copy, or a way through the host and back.
    std::vector<Step> any_transfer(const std::vector<unsigned> &arrays) {
        Step step = {Kind::Fill, any_of(arrays), any_of(arrays), below(COUNT / 2), 1 + below(COUNT / 2), 0, 0, any_map()};
        switch (below(5)) {
        case 0:
            return {step};
        case 1:
            step.kind = Kind::Copy;
            return {step};
        case 2:
            step.kind = Kind::FromHost;
            step.slot = memory_.put_on_host(random_, step.count);
            return {step};
        case 3:
            step.kind = Kind::ToHost;
            step.slot = memory_.reserve_host(step.count);
            return {step};
        default:
            step.slot = memory_.reserve_host(step.count);
            Step there = step, changed = step, back = step;
            there.kind = Kind::ToHost;
            changed.kind = Kind::OnHost;
            back.kind = Kind::FromHost;
            back.to = any_of(arrays);
            return {there, changed, back};
        }
    }

    void perform(const Step &step, unsigned stream) {
        memory_.enqueue(step, streams_[stream]);
        memory_.model(step);
        if (step.kind == Kind::ToHost) {
            arrived_[stream].push_back(step);
        }
    }

    void launch_many(unsigned stream, unsigned length) {
        const std::vector<unsigned> arrays = arrays_of(stream);
        for (unsigned done = 0; done < length; ++done) {
            perform(any_launch(arrays), stream);
        }
    }

    // ---- Order ----

    // Gives an array to another stream.
    void hand_over(unsigned index, unsigned to) {
        const unsigned from = std::exchange(memory_.arrays[index].stream, to);
        const auto is_blocking = [](unsigned stream) { return stream == BLOCKING || stream == OTHER_BLOCKING; };
        if (from == to || (from == DEFAULT && is_blocking(to))) {
            return;
        }
        if (is_blocking(from) && to == DEFAULT) {
            // What the default stream does makes the order, not what it could do.
            return perform({Kind::Apply, index, index, 0, 0, 0, 0, any_map()}, DEFAULT);
        }
        CHECK(cudaEventRecord(marks_[from], streams_[from]));
        if (below(16) == 0) {
            CHECK(cudaEventSynchronize(marks_[from]));
            check_arrived(from);
        } else {
            CHECK(cudaStreamWaitEvent(streams_[to], marks_[from], 0));
        }
    }

    // Sees to it that a stream has an array.
    void prepare(unsigned stream) {
        if (arrays_of(stream).empty() || below(6) == 0) {
            hand_over(below(static_cast<unsigned>(memory_.arrays.size())), stream);
        }
    }

    // ---- Checks ----

    void check_arrived(unsigned stream) {
        for (const Step &step : arrived_[stream]) {
            memory_.check_host(step);
        }
        arrived_[stream].clear();
    }

    // All but so many of the timed runs.
    void check_times(size_t left) {
        for (; timed_.size() > left; timed_.pop_front()) {
            float elapsed_ms = -1.0f;
            const Timed &oldest = timed_.front();
            CHECK(cudaEventSynchronize(oldest.end));
            CHECK(cudaEventElapsedTime(&elapsed_ms, oldest.begin, oldest.end));
            REQUIRE(elapsed_ms >= 0.0f);
            CHECK(cudaEventDestroy(oldest.begin));
            CHECK(cudaEventDestroy(oldest.end));
        }
    }

    void wait(unsigned stream) {
        const cudaError_t state = cudaStreamQuery(streams_[stream]);
        REQUIRE(state == cudaSuccess || state == cudaErrorNotReady);
        CHECK(cudaStreamSynchronize(streams_[stream]));
        check_arrived(stream);
        const std::vector<unsigned> arrays = arrays_of(stream);
        if (!arrays.empty()) {
            memory_.check_array(memory_.arrays[any_of(arrays)]);
        }
    }

    // ---- What comes between runs ----

    void interrupt(unsigned stream) {
        const std::vector<unsigned> arrays = arrays_of(stream);
        switch (below(12)) {
        case 0:
        case 1:
            for (unsigned left = 1 + below(3); left > 0; --left) {
                perform(any_launch_with_attributes(arrays), stream);
            }
            break;
        case 2:
        case 3:
        case 4:
            transfer(arrays, stream);
            break;
        case 5:
            hand_over(any_of(arrays), below(STREAMS));
            break;
        case 6:
            // An order that nothing needs.
            CHECK(cudaEventRecord(marks_[stream], streams_[stream]));
            CHECK(cudaStreamWaitEvent(streams_[below(STREAMS)], marks_[stream], 0));
            break;
        case 7:
            time_run(stream);
            break;
        case 8:
            allocate_or_free(stream);
            break;
        case 9:
            make_graph();
            break;
        case 10:
            launch_graph(stream);
            break;
        default:
            if (below(4) == 0) {
                wait(stream);
            }
        }
    }

    void transfer(const std::vector<unsigned> &arrays, unsigned stream) {
        std::vector<Step> steps = any_transfer(arrays);
        if (steps[0].kind == Kind::FromHost && below(2) == 0) {
            steps[0].kind = Kind::FromPageable;
        }
        for (const Step &step : steps) {
            perform(step, stream);
        }
    }

    void time_run(unsigned stream) {
        Timed timed;
        CHECK(cudaEventCreate(&timed.begin));
        CHECK(cudaEventCreate(&timed.end));
        CHECK(cudaEventRecord(timed.begin, streams_[stream]));
        launch_many(stream, 1 + below(8));
        CHECK(cudaEventRecord(timed.end, streams_[stream]));
        timed_.push_back(timed);
        check_times(MOST_TIMED);
    }

    // Memory in stream order, which lasts for some runs.
    void allocate_or_free(unsigned stream) {
        if (memory_.arrays.size() < LASTING + MOST_TEMPORARY && below(2) == 0) {
            memory_.arrays.push_back({nullptr, std::vector<unsigned>(COUNT), stream});
            CHECK(cudaMallocAsync(&memory_.arrays.back().device, COUNT * sizeof(unsigned), streams_[stream]));
            const unsigned index = static_cast<unsigned>(memory_.arrays.size()) - 1;
            perform({Kind::Fill, index, 0, 0, COUNT, 0, 0, any_map()}, stream);
        } else if (memory_.arrays.size() > LASTING) {
            const Array &last = memory_.arrays.back();
            CHECK(cudaFreeAsync(last.device, streams_[last.stream]));
            memory_.arrays.pop_back();
        }
    }

    // ---- Graphs ----

    std::vector<Step> any_steps(const std::vector<unsigned> &arrays) {
        std::vector<Step> steps;
        for (unsigned left = 1 + below(3); left > 0; --left) {
            steps.push_back(below(3) == 0 ? any_launch_with_attributes(arrays) : any_launch(arrays));
            if (steps.back().kind == Kind::ApplyOverlapped) {
                // What a capture makes of those is edges of another kind, which is not what this is about.
                steps.back().kind = Kind::ApplyUrgently;
            }
            if (below(3) == 0) {
                const std::vector<Step> more = any_transfer(arrays);
                steps.insert(steps.end(), more.begin(), more.end());
            }
        }
        return steps;
    }

    // Captures a graph's steps on two streams, while another is at work.
    cudaGraph_t capture(const Graph &graph) {
        const auto add = [&](const std::vector<Step> &steps, unsigned stream) {
            std::for_each(steps.begin(), steps.end(), [&](const Step &step) { memory_.enqueue(step, streams_[stream]); });
        };
        prepare(BLOCKING);
        cudaGraph_t captured;
        CHECK(cudaStreamBeginCapture(streams_[URGENT], cudaStreamCaptureModeRelaxed));
        CHECK(cudaEventRecord(marks_[URGENT], streams_[URGENT]));
        CHECK(cudaStreamWaitEvent(streams_[LAZY], marks_[URGENT], 0));
        add(graph.one, URGENT);
        launch_many(BLOCKING, 1 + below(8));
        add(graph.other, LAZY);
        launch_many(BLOCKING, 1 + below(8));
        CHECK(cudaEventRecord(marks_[LAZY], streams_[LAZY]));
        CHECK(cudaStreamWaitEvent(streams_[URGENT], marks_[LAZY], 0));
        add(graph.joined, URGENT);
        CHECK(cudaStreamEndCapture(streams_[URGENT], &captured));
        return captured;
    }

    // A new graph, or an old one with other maps.
    void make_graph() {
        if (graphs_.size() == MOST_GRAPHS && below(2) == 0) {
            return change_graph(graphs_[below(MOST_GRAPHS)]);
        }
        if (graphs_.size() == MOST_GRAPHS) {
            // It may be at work still.
            CHECK(cudaGraphExecDestroy(graphs_.front().executable));
            graphs_.pop_front();
        }
        // Four arrays, a row of them as if in a ring.
        const unsigned first = below(LASTING);
        const auto some = [&](unsigned from, unsigned count) {
            std::vector<unsigned> arrays(count);
            std::generate(arrays.begin(), arrays.end(), [&] { return (first + from++) % LASTING; });
            return arrays;
        };
        Graph graph = {nullptr, some(0, 4), any_steps(some(0, 2)), any_steps(some(2, 2)), any_steps(some(0, 4))};
        const cudaGraph_t captured = capture(graph);
        CHECK(cudaGraphInstantiate(&graph.executable, captured, 0));
        CHECK(cudaGraphDestroy(captured));
        graphs_.push_back(graph);
    }

    void change_graph(Graph &graph) {
        for (std::vector<Step> *steps : {&graph.one, &graph.other, &graph.joined}) {
            std::for_each(steps->begin(), steps->end(), [&](Step &step) { step.map = any_map(); });
        }
        const cudaGraph_t captured = capture(graph);
        cudaGraphExecUpdateResultInfo info;
        CHECK(cudaGraphExecUpdate(graph.executable, captured, &info));
        CHECK(cudaGraphDestroy(captured));
    }

    void launch_graph(unsigned stream) {
        if (graphs_.empty()) {
            return;
        }
        const Graph &graph = graphs_[below(static_cast<unsigned>(graphs_.size()))];
        for (unsigned index : graph.arrays) {
            hand_over(index, stream);
        }
        for (unsigned times = 1 + below(3); times > 0; --times) {
            CHECK(cudaGraphLaunch(graph.executable, streams_[stream]));
            for (const std::vector<Step> *steps : {&graph.one, &graph.other, &graph.joined}) {
                std::for_each(steps->begin(), steps->end(), [&](const Step &step) { memory_.model(step); });
            }
        }
    }

    Random random_;
    Memory memory_;
    cudaStream_t streams_[STREAMS];
    cudaEvent_t marks_[STREAMS];
    // Copies to the host that have not been waited for.
    std::vector<Step> arrived_[STREAMS];
    std::deque<Timed> timed_;
    std::deque<Graph> graphs_;
};

int main(int argc, char **argv) {
    Mix mix(argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 1);
    mix.run();
    const Checksum checksum = mix.finish();
    std::printf("mixed_commands: ok checksum=%016" PRIx64 " launches=%u\n", checksum.value(), mix.launches());
    return 0;
}
