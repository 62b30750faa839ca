// One step of gravity among all pairs. x, y, z, mass in a body; x, y, z, unused in a velocity.
constexpr int kTile = 64;
constexpr float kSoftening = 0.25f;
constexpr float kStep = 0.015625f;

extern "C" __global__ void advance(const float4 *old_bodies, float4 *new_bodies, float4 *velocities, int count) {
    __shared__ float4 tile[kTile];
    int i = blockIdx.x * kTile + threadIdx.x;
    float4 body = old_bodies[i];
    float4 velocity = velocities[i];
    for (int start = 0; start < count; start += kTile) {
        tile[threadIdx.x] = old_bodies[start + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < kTile; ++j) {
            float dx = tile[j].x - body.x, dy = tile[j].y - body.y, dz = tile[j].z - body.z;
            float square = dx * dx + dy * dy + dz * dz + kSoftening;
            float pull = kStep * tile[j].w / (square * sqrtf(square));
            velocity.x += dx * pull;
            velocity.y += dy * pull;
            velocity.z += dz * pull;
        }
        __syncthreads();
    }
    velocities[i] = velocity;
    new_bodies[i] =
        make_float4(body.x + velocity.x * kStep, body.y + velocity.y * kStep, body.z + velocity.z * kStep, body.w);
}
