// Gravity among all pairs of bodies over some steps: floating point with IEEE division and square root, shared tiles,
// vector loads, two buffers that swap.
#include "check.h"

#include <cmath>
#include <utility>

constexpr int kTile = 64;
constexpr float kSoftening = 0.25f;
constexpr float kStep = 0.015625f;

__global__ void advance(const float4 *old_bodies, float4 *new_bodies, float3 *velocities, int count) {
    __shared__ float4 tile[kTile];
    int i = blockIdx.x * kTile + threadIdx.x;
    float4 body = old_bodies[i];
    float3 pull = make_float3(0.0f, 0.0f, 0.0f);
    for (int start = 0; start < count; start += kTile) {
        tile[threadIdx.x] = old_bodies[start + threadIdx.x];
        __syncthreads();
#pragma unroll 4
        for (int j = 0; j < kTile; ++j) {
            float dx = tile[j].x - body.x, dy = tile[j].y - body.y, dz = tile[j].z - body.z;
            float square = dx * dx + dy * dy + dz * dz + kSoftening;
            float factor = tile[j].w / (square * sqrtf(square));
            pull.x += dx * factor;
            pull.y += dy * factor;
            pull.z += dz * factor;
        }
        __syncthreads();
    }
    float3 velocity = velocities[i];
    velocity.x += pull.x * kStep;
    velocity.y += pull.y * kStep;
    velocity.z += pull.z * kStep;
    velocities[i] = velocity;
    new_bodies[i] =
        make_float4(body.x + velocity.x * kStep, body.y + velocity.y * kStep, body.z + velocity.z * kStep, body.w);
}

// The same step in double precision on the CPU.
struct Reference {
    double x, y, z, mass, vx, vy, vz;
};

static void advance_reference(std::vector<Reference> &bodies) {
    for (Reference &body : bodies) {
        double px = 0, py = 0, pz = 0;
        for (const Reference &other : bodies) {
            double dx = other.x - body.x, dy = other.y - body.y, dz = other.z - body.z;
            double square = dx * dx + dy * dy + dz * dz + kSoftening;
            double factor = other.mass / (square * std::sqrt(square));
            px += dx * factor;
            py += dy * factor;
            pz += dz * factor;
        }
        body.vx += px * kStep;
        body.vy += py * kStep;
        body.vz += pz * kStep;
    }
    for (Reference &body : bodies) {
        body.x += body.vx * kStep;
        body.y += body.vy * kStep;
        body.z += body.vz * kStep;
    }
}

int main() {
    constexpr int kCount = 256, kSteps = 3;
    Random random(5);
    std::vector<float4> bodies(kCount);
    std::vector<Reference> reference(kCount);
    for (int i = 0; i < kCount; ++i) {
        auto coordinate = [&] { return random.below<float>(4096) / 512.0f - 4.0f; };
        bodies[i] = make_float4(coordinate(), coordinate(), coordinate(), 0.5f + random.below<float>(256) / 256.0f);
        reference[i] = {bodies[i].x, bodies[i].y, bodies[i].z, bodies[i].w, 0, 0, 0};
    }
    DeviceArray<float4> first(bodies), second(kCount);
    DeviceArray<float3> velocities(kCount);
    CHECK(cudaMemset(velocities.get(), 0, velocities.size_bytes()));
    float4 *from = first.get(), *to = second.get();
    for (int step = 0; step < kSteps; ++step) {
        advance<<<kCount / kTile, kTile>>>(from, to, velocities.get(), kCount);
        CHECK(cudaGetLastError());
        std::swap(from, to);
        advance_reference(reference);
    }
    CHECK(cudaMemcpy(bodies.data(), from, kCount * sizeof(float4), cudaMemcpyDeviceToHost));

    Checksum checksum;
    for (int i = 0; i < kCount; ++i) {
        REQUIRE(std::fabs(bodies[i].x - reference[i].x) < 1e-4);
        REQUIRE(std::fabs(bodies[i].y - reference[i].y) < 1e-4);
        REQUIRE(std::fabs(bodies[i].z - reference[i].z) < 1e-4);
    }
    checksum.add(bodies);
    return report_ok("n_body", checksum);
}
