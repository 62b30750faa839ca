/* Graphs by the driver API: a capture that is looked at and steered, a capture into a graph, edges with and without data, nodes by the one function for
 * all kinds, attributes, values written by nodes, objects that graphs keep, what cannot be. */
#include "check.h"
#include "kernels.h"

#include <unistd.h>

static const char code[] = PTX_HEAD PTX_ADD;

static void CUDA_CB count_call(void *counter) { ++*(volatile int *)counter; }

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuDevicePrimaryCtxRelease);
    LOAD(cuCtxSetCurrent);
    LOAD(cuModuleLoadData);
    LOAD(cuModuleGetFunction);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemcpyDtoH);
    LOAD(cuMemsetD32);
    LOAD(cuStreamCreate);
    LOAD(cuStreamDestroy);
    LOAD(cuStreamSynchronize);
    LOAD(cuLaunchKernel);
    LOAD(cuStreamWriteValue32);
    LOAD(cuStreamBeginCapture);
    LOAD(cuStreamBeginCaptureToGraph);
    LOAD(cuStreamEndCapture);
    LOAD(cuStreamGetCaptureInfo);
    LOAD(cuStreamUpdateCaptureDependencies);
    LOAD(cuGraphCreate);
    LOAD(cuGraphDestroy);
    LOAD(cuGraphAddNode);
    LOAD(cuGraphAddEmptyNode);
    LOAD(cuGraphAddDependencies);
    LOAD(cuGraphRemoveDependencies);
    LOAD(cuGraphGetNodes);
    LOAD(cuGraphGetEdges);
    LOAD(cuGraphNodeGetDependencies);
    LOAD(cuGraphNodeGetDependentNodes);
    LOAD(cuGraphDestroyNode);
    LOAD(cuGraphInstantiate);
    LOAD(cuGraphInstantiateWithParams);
    LOAD(cuGraphExecGetFlags);
    LOAD(cuGraphExecNodeSetParams);
    LOAD(cuGraphExecDestroy);
    LOAD(cuGraphLaunch);
    LOAD(cuGraphKernelNodeSetAttribute);
    LOAD(cuGraphKernelNodeGetAttribute);
    LOAD(cuGraphKernelNodeCopyAttributes);
    LOAD(cuGraphDebugDotPrint);
    LOAD(cuUserObjectCreate);
    LOAD(cuGraphRetainUserObject);

    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction add;
    CUdeviceptr words;
    CUstream stream;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&context, device));
    CHECK(cuCtxSetCurrent_(context));
    CHECK(cuModuleLoadData_(&module, code));
    CHECK(cuModuleGetFunction_(&add, module, "add"));
    CHECK(cuMemAlloc_(&words, 65 * 4));
    CHECK(cuMemsetD32_(words, 0, 65));
    CHECK(cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING));

    /* A capture into a graph that has a node, looked at and steered. */
    CUgraph graph, captured;
    CUgraphNode root, launched, other;
    CHECK(cuGraphCreate_(&graph, 0));
    CHECK(cuGraphAddEmptyNode_(&root, graph, NULL, 0));
    CHECK(cuStreamBeginCaptureToGraph_(stream, graph, &root, NULL, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    uint32_t addend = 5;
    void *parameters[] = {&words, &addend};
    CHECK(cuLaunchKernel_(add, 1, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    const CUgraphNode *dependencies;
    const CUgraphEdgeData *data;
    size_t count = 0;
    CHECK(cuStreamGetCaptureInfo_(stream, &status, &id, &captured, &dependencies, &data, &count));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && captured == graph && count == 1);
    launched = dependencies[0];
    REQUIRE(launched != root);
    CHECK(cuStreamUpdateCaptureDependencies_(stream, &root, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    CHECK(cuStreamWriteValue32_(stream, words + 64 * 4, 1000, 0));
    CHECK(cuStreamUpdateCaptureDependencies_(stream, &launched, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    addend = 70;
    CHECK(cuLaunchKernel_(add, 1, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
    CHECK(cuStreamGetCaptureInfo_(stream, &status, NULL, NULL, &dependencies, NULL, &count));
    REQUIRE(count == 1);
    CUgraphNode last = dependencies[0];
    CHECK(cuStreamEndCapture_(stream, &captured));
    REQUIRE(captured == graph);
    CHECK(cuGraphNodeGetDependencies_(last, NULL, NULL, &count));
    REQUIRE(count == 2);
    CHECK(cuGraphNodeGetDependentNodes_(root, NULL, NULL, &count));
    REQUIRE(count == 2);
    REFUSED(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture_(stream, &captured));
    REFUSED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));

    /* A node by the function for all kinds; its edge has data. */
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    params.kernel.func = add;
    params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = 1;
    params.kernel.blockDimX = 64;
    params.kernel.blockDimY = params.kernel.blockDimZ = 1;
    params.kernel.kernelParams = parameters;
    addend = 300;
    CUgraphEdgeData programmatic = {.from_port = 1, .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    CHECK(cuGraphAddNode_(&other, graph, &last, &programmatic, 1, &params));
    CUgraphNode from[8], to[8];
    CUgraphEdgeData edges[8];
    count = 8;
    REFUSED(CUDA_ERROR_LOSSY_QUERY, cuGraphGetEdges_(graph, from, to, NULL, &count));
    CHECK(cuGraphGetEdges_(graph, from, to, edges, &count));
    REQUIRE(count == 5);
    CHECK(cuGraphRemoveDependencies_(graph, &last, &other, &programmatic, 1));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies_(graph, &last, &other, NULL, 1));
    CHECK(cuGraphAddDependencies_(graph, &last, &other, NULL, 1));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies_(graph, &last, &other, NULL, 1));
    count = 8;
    CHECK(cuGraphGetNodes_(graph, from, &count));
    REQUIRE(count == 5 && from[0] == root && from[1] == launched && from[4] == other && from[5] == NULL);

    /* Attributes stay with the node. */
    CUlaunchAttributeValue value = {.priority = -1};
    CHECK(cuGraphKernelNodeSetAttribute_(other, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    CHECK(cuGraphKernelNodeCopyAttributes_(launched, other));
    memset(&value, 0, sizeof value);
    CHECK(cuGraphKernelNodeGetAttribute_(launched, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    REQUIRE(value.priority == -1);

    /* Launches; a node changed in between. */
    static volatile int destroyed = 0;
    CUuserObject object;
    CHECK(cuUserObjectCreate_(&object, (void *)&destroyed, count_call, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CHECK(cuGraphRetainUserObject_(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CUDA_GRAPH_INSTANTIATE_PARAMS wanted = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
                                            .hUploadStream = stream};
    CUgraphExec executable, refused;
    CHECK(cuGraphInstantiateWithParams_(&executable, graph, &wanted));
    REQUIRE(wanted.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
    cuuint64_t flags;
    CHECK(cuGraphExecGetFlags_(executable, &flags));
    REQUIRE((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0);
    CHECK(cuGraphLaunch_(executable, stream));
    addend = 4000;
    CHECK(cuGraphExecNodeSetParams_(executable, other, &params));
    params.type = CU_GRAPH_NODE_TYPE_MEMSET;
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams_(executable, other, &params));
    CHECK(cuGraphLaunch_(executable, stream));
    CHECK(cuStreamSynchronize_(stream));
    static uint32_t host[65];
    CHECK(cuMemcpyDtoH_(host, words, sizeof host));
    REQUIRE(host[0] == 5 + 70 + 300 + 5 + 70 + 4000 && host[64] == 1000);
    CHECK(cuGraphDestroy_(graph));
    REQUIRE(destroyed == 0);
    CHECK(cuGraphExecDestroy_(executable));
    /* Drivers may end executable graphs later, on a thread of their own. */
    for (int waited_ms = 0; destroyed == 0 && waited_ms < 60000; ++waited_ms) {
        usleep(1000);
    }
    REQUIRE(destroyed == 1);

    /* What cannot be: a cycle, a node of another graph. */
    CUgraph elsewhere;
    CHECK(cuGraphCreate_(&graph, 0));
    CHECK(cuGraphCreate_(&elsewhere, 0));
    CHECK(cuGraphAddEmptyNode_(&last, elsewhere, NULL, 0));
    CHECK(cuGraphAddEmptyNode_(&root, graph, NULL, 0));
    CHECK(cuGraphAddEmptyNode_(&other, graph, &root, 1));
    CHECK(cuGraphAddDependencies_(graph, &other, &root, NULL, 1));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate_(&refused, graph, 0));
    CHECK(cuGraphDestroyNode_(root));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode_(&root, graph, &last, 1));
    CHECK(cuGraphDestroy_(elsewhere));
    char path[64];
    snprintf(path, sizeof path, "/tmp/graph-api-%d.dot", (int)getpid());
    CHECK(cuGraphDebugDotPrint_(graph, path, 0));
    FILE *file = fopen(path, "r");
    char text[64] = "";
    REQUIRE(file && fgets(text, sizeof text, file) && strncmp(text, "digraph", 7) == 0);
    fclose(file);
    unlink(path);
    CHECK(cuGraphDestroy_(graph));

    uint64_t checksum = 0;
    for (int i = 0; i < 65; ++i) {
        checksum = checksum * 31 + host[i];
    }
    CHECK(cuMemFree_(words));
    CHECK(cuStreamDestroy_(stream));
    CHECK(cuDevicePrimaryCtxRelease_(device));
    printf("graph_api: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
