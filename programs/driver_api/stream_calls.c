/* What streams and events are asked and told, in all versions: places, attributes, captures, waits for values. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"

static uint64_t facts(CUdevice device, CUcontext context) {
    CUstream stream, other;
    CUcontext of = NULL;
    CUgreenCtx green = (CUgreenCtx)&of;
    CUdevice where = -1;
    unsigned flags = 77;
    int priority = 77, least = 0, greatest = 0;
    unsigned long long id = 0, other_id = 0;
    CALL(cuCtxGetStreamPriorityRange, &least, &greatest);
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, greatest);
    CALL(cuStreamCreate, &other, CU_STREAM_DEFAULT);
    CALL(cuStreamGetCtx, stream, &of);
    REQUIRE(of == context);
    of = NULL;
    CALL(cuStreamGetCtx_v2, stream, &of, &green);
    REQUIRE(of == context && green == NULL);
    CALL(cuStreamGetGreenCtx, stream, &green);
    REQUIRE(green == NULL);
    CALL(cuStreamGetDevice, stream, &where);
    REQUIRE(where == device);
    CALL(cuStreamGetFlags, stream, &flags);
    REQUIRE(flags == CU_STREAM_NON_BLOCKING);
    CALL(cuStreamGetPriority, stream, &priority);
    REQUIRE(priority == greatest);
    CALL(cuStreamGetId, stream, &id);
    CALL(cuStreamGetId, other, &other_id);
    REQUIRE(id != other_id);
    CALL(cuStreamQuery, stream);

    CUstreamAttrValue value;
    memset(&value, 0, sizeof value);
    value.syncPolicy = CU_SYNC_POLICY_YIELD;
    CALL(cuStreamSetAttribute, stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
    CALL(cuStreamCopyAttributes, other, stream);
    memset(&value, 0, sizeof value);
    CALL(cuStreamGetAttribute, other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
    REQUIRE(value.syncPolicy == CU_SYNC_POLICY_YIELD);

    CUevent first, second;
    float old_ms = -1, new_ms = -1;
    CALL(cuEventCreate, &first, CU_EVENT_DEFAULT);
    CALL(cuEventCreate, &second, CU_EVENT_DEFAULT);
    CALL(cuEventRecordWithFlags, first, stream, CU_EVENT_RECORD_DEFAULT);
    CALL(cuEventRecord, second, stream);
    CALL(cuEventSynchronize, second);
    CALL(cuEventQuery, first);
    CALL(cuEventElapsedTime, &old_ms, first, second);
    CALL(cuEventElapsedTime_v2, &new_ms, first, second);
    REQUIRE(old_ms >= 0 && old_ms == new_ms);
    CALL(cuEventDestroy, first);
    CALL(cuEventDestroy_v2, second);
    CALL(cuStreamDestroy, other);
    CALL(cuStreamDestroy_v2, stream);
    return mix(0, flags);
}

/* A capture by the oldest functions: what it is told, and a dependency taken away. */
static uint64_t captures(CUstream stream) {
    CUdeviceptr words;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t first_id = 0, second_id = 0;
    CUgraph graph = NULL, ended;
    const CUgraphNode *dependencies;
    size_t count = 77;
    CALL(cuMemAlloc_v2, &words, 256);
    CALL(cuMemsetD32_v2, words, 0, 64);
    CALL(cuStreamBeginCapture, stream);
    CALL(cuMemsetD32Async, words, 5, 32, stream);
    CALL(cuStreamGetCaptureInfo, stream, &status, &first_id);
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CALL(cuStreamGetCaptureInfo_v2, stream, &status, &second_id, &graph, &dependencies, &count);
    REQUIRE(first_id == second_id && graph && count == 1);
    CUgraphNode node = dependencies[0];
    CALL(cuStreamUpdateCaptureDependencies, stream, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    CALL(cuMemsetD32Async, words + 128, 6, 32, stream);
    CALL(cuStreamUpdateCaptureDependencies, stream, &node, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
    CALL(cuStreamEndCapture, stream, &ended);
    size_t edges = 77;
    CALL(cuGraphGetEdges, ended, NULL, NULL, &edges);
    REQUIRE(ended == graph && edges == 0);

    CUgraphExec executables[2];
    CUgraphNode wrong;
    char log[64];
    CALL(cuGraphInstantiate, &executables[0], ended, &wrong, log, sizeof log);
    CALL(cuGraphInstantiate_v2, &executables[1], ended, &wrong, log, sizeof log);
    uint32_t host[64];
    uint64_t checksum = 0;
    for (int i = 0; i < 2; ++i) {
        CALL(cuMemsetD32_v2, words, 0, 64);
        CALL(cuGraphLaunch, executables[i], stream);
        CALL(cuStreamSynchronize, stream);
        CALL(cuMemcpyDtoH_v2, host, words, sizeof host);
        REQUIRE(host[0] == 5 && host[31] == 5 && host[32] == 6 && host[63] == 6);
        checksum = mix(checksum, host[33]);
    }
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;
    CALL(cuGraphExecUpdate, executables[0], ended, &wrong, &result);
    REQUIRE(result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    CALL(cuGraphExecDestroy, executables[0]);
    CALL(cuGraphExecDestroy, executables[1]);
    CALL(cuGraphDestroy, ended);
    CALL(cuMemFree_v2, words);
    return checksum;
}

/* Values in memory, by the first version of the functions, which most drivers of today do not have. */
static uint64_t values(CUdevice device, CUstream waits, CUstream writes) {
    int supported = 0;
    CALL(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, device);
    if (!supported) {
        return mix(9, 5);
    }
    CUdeviceptr flags;
    uint64_t host[4];
    CALL(cuMemAlloc_v2, &flags, sizeof host);
    CALL(cuMemsetD32_v2, flags, 0, 8);
    CALL(cuStreamWaitValue32, waits, flags, 3, CU_STREAM_WAIT_VALUE_EQ);
    CALL(cuStreamWaitValue64, waits, flags + 8, 4, CU_STREAM_WAIT_VALUE_GEQ);
    CALL(cuStreamWriteValue64, waits, flags + 24, 9, CU_STREAM_WRITE_VALUE_DEFAULT);
    REFUSED(CUDA_ERROR_NOT_READY, FUNCTION(cuStreamQuery, "")(waits));
    CUstreamBatchMemOpParams operations[2];
    memset(operations, 0, sizeof operations);
    operations[0].writeValue.operation = operations[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[0].writeValue.address = flags + 16;
    operations[0].writeValue.value = 7;
    operations[1].writeValue.address = flags;
    operations[1].writeValue.value = 3;
    CALL(cuStreamBatchMemOp, writes, 2, operations, 0);
    CALL(cuStreamWriteValue32, writes, flags + 8, 5, CU_STREAM_WRITE_VALUE_DEFAULT);
    CALL(cuStreamSynchronize, waits);
    CALL(cuMemcpyDtoH_v2, host, flags, sizeof host);
    REQUIRE(host[0] == 3 && host[1] == 5 && host[2] == 7 && host[3] == 9);
    CALL(cuMemFree_v2, flags);
    return mix(host[3], host[1]);
}

/* cuBLAS asks the driver's table of tools for a stream's identity, and for that of the context, before a thread has one: a thread that
 * was just started calls it so. */
static void without_context(CUcontext context, CUstream stream) {
    static const CUuuid tools = {"\x21\x31\x8c\x60\x97\x14\x32\x48\x8c\xa6\x41\xff\x73\x24\xc8\xf2"};
    const void *table = NULL;
    CALL(cuGetExportTable, &table, &tools);
    void *const *slots = table;
    CUresult (*context_id)(CUcontext, unsigned long long *) = (CUresult(*)(CUcontext, unsigned long long *))slots[4];
    CUresult (*object_of)(CUcontext, CUstream, unsigned long long *, unsigned) =
        (CUresult(*)(CUcontext, CUstream, unsigned long long *, unsigned))slots[51];
    CUresult (*identity_of)(CUcontext, unsigned long long, unsigned long long *) =
        (CUresult(*)(CUcontext, unsigned long long, unsigned long long *))slots[39];
    unsigned long long object = 0, before = 0, identity = 1, id = 77;
    CHECK(object_of(context, stream, &object, 0));
    CHECK(identity_of(context, object, &before));
    CALL(cuCtxSetCurrent, NULL);
    CHECK(object_of(NULL, stream, &object, 0));
    CHECK(identity_of(NULL, object, &identity));
    REQUIRE(identity == before);
    CHECK(context_id(NULL, &id));
    REQUIRE(id == 0);
    CALL(cuCtxSetCurrent, context);
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUstream one, two;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &one, CU_STREAM_DEFAULT);
    CALL(cuStreamCreate, &two, CU_STREAM_DEFAULT);
    uint64_t checksum = facts(device, context);
    without_context(context, one);
    checksum = mix(checksum, captures(one));
    checksum = mix(checksum, values(device, one, two));
    CALL(cuStreamDestroy, one);
    CALL(cuStreamDestroy, two);
    CALL(cuDevicePrimaryCtxRelease, device);
    printf("stream_calls: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
