//! The answer that libcudart expects from a driver before it works with it.
//!
//! Each copy of libcudart in a process asks slot 1 of the INTEGRITY export table three times. The
//! answers to versions that end in 0 and 1 are constants; to others it is HMAC-MD2 (RFC 2104 over
//! RFC 1319) of what the runtime was told about driver, process, tables and devices. Without it
//! every runtime call returns 103, so it is needed for interoperability. Constants and field order
//! are published by the ZLUDA project; `tests/data/handshake-vectors.json` holds vectors accepted
//! by real runtimes 11.8 to 13.5. [`export_tables`](crate::export_tables) serves it.

use hmac::{Hmac, Mac};
use md2::Md2;

/// Answer to versions that end in 0.
const ANSWER_0: [u8; 16] = [
    0x5c, 0x67, 0xcb, 0x03, 0x1c, 0x18, 0x41, 0x33, 0xe8, 0xd1, 0x4c, 0x1f, 0xaa, 0x83, 0xd3, 0x8e,
];
/// Answer to versions that end in 1.
const ANSWER_1: [u8; 16] = [
    0x5c, 0x67, 0xcb, 0x03, 0x1c, 0x18, 0x41, 0x18, 0xe8, 0xd1, 0x4c, 0x1f, 0xaa, 0x83, 0xd3, 0x8e,
];
/// Key of the digest.
const KEY: [u8; 16] = [
    0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
];

/// What is hashed about the process and the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What `cuDriverGetVersion` tells this process.
    pub driver_version: u32,
    /// The slot's first argument: version of the runtime, plus 0, 1 or 2.
    pub version: u32,
    /// `getpid()`, read at each call (a fork changes it).
    pub pid: u32,
    /// The calling thread's `pthread_self()`; its low half is hashed.
    pub pthread_self: u64,
    /// Address of the CUDART_INTERFACE table.
    pub cudart_table: u64,
    /// Address of the INTEGRITY table.
    pub integrity_table: u64,
    /// The pointer in word 1 of the INTEGRITY table.
    pub slot1: u64,
    /// The slot's second argument, as received.
    pub unix_seconds: u64,
}

/// What is hashed about a device, as the public entry points tell it to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// What `cuDeviceGetUuid` (version 1) stores.
    pub uuid: [u8; 16],
    /// Attribute PCI_DOMAIN_ID.
    pub pci_domain: i32,
    /// Attribute PCI_BUS_ID.
    pub pci_bus: i32,
    /// Attribute PCI_DEVICE_ID.
    pub pci_device: i32,
}

/// The 16 bytes to answer; `devices` are all visible ones, by ordinal.
pub fn answer(request: &Request, devices: &[DeviceIdentity]) -> [u8; 16] {
    match request.version % 10 {
        0 => ANSWER_0,
        1 => ANSWER_1,
        _ => digest(&message(request, devices)),
    }
}

fn message(request: &Request, devices: &[DeviceIdentity]) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + 28 * devices.len());
    out.extend(request.driver_version.to_le_bytes());
    out.extend(request.version.to_le_bytes());
    out.extend(request.pid.to_le_bytes());
    out.extend((request.pthread_self as u32).to_le_bytes());
    out.extend(request.cudart_table.to_le_bytes());
    out.extend(request.integrity_table.to_le_bytes());
    out.extend(request.slot1.to_le_bytes());
    out.extend(request.unix_seconds.to_le_bytes());
    for device in devices {
        out.extend(device.uuid);
        out.extend(device.pci_domain.to_le_bytes());
        out.extend(device.pci_bus.to_le_bytes());
        out.extend(device.pci_device.to_le_bytes());
    }
    out
}

fn digest(message: &[u8]) -> [u8; 16] {
    // A key of any length is accepted by HMAC; were it not, the zero answer is merely refused.
    let Ok(mut mac) = Hmac::<Md2>::new_from_slice(&KEY) else { return [0; 16] };
    mac.update(message);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use md2::Digest;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Vector {
        name: String,
        driver_version: u32,
        version: u32,
        pid: u32,
        pthread_self: String,
        cudart_table: String,
        integrity_table: String,
        slot1: String,
        unix_seconds: u64,
        devices: Vec<VectorDevice>,
        message: Option<String>,
        inner: Option<String>,
        out: String,
    }

    #[derive(Deserialize)]
    struct VectorDevice {
        uuid: String,
        pci_domain: i32,
        pci_bus: i32,
        pci_device: i32,
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn number(text: &str) -> u64 {
        u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
    }

    fn vectors() -> Vec<Vector> {
        serde_json::from_str(include_str!("../tests/data/handshake-vectors.json")).unwrap()
    }

    #[test]
    fn every_vector_gives_its_message_inner_digest_and_answer() {
        let vectors = vectors();
        assert_eq!(vectors.len(), 14);
        for vector in vectors {
            let request = Request {
                driver_version: vector.driver_version,
                version: vector.version,
                pid: vector.pid,
                pthread_self: number(&vector.pthread_self),
                cudart_table: number(&vector.cudart_table),
                integrity_table: number(&vector.integrity_table),
                slot1: number(&vector.slot1),
                unix_seconds: vector.unix_seconds,
            };
            let devices: Vec<_> = vector
                .devices
                .iter()
                .map(|device| DeviceIdentity {
                    uuid: u128::from_str_radix(&device.uuid, 16).unwrap().to_be_bytes(),
                    pci_domain: device.pci_domain,
                    pci_bus: device.pci_bus,
                    pci_device: device.pci_device,
                })
                .collect();
            let message = message(&request, &devices);
            if let Some(expected) = &vector.message {
                assert_eq!(&hex(&message), expected, "{}", vector.name);
            }
            if let Some(expected) = &vector.inner {
                let key: Vec<u8> = KEY.iter().map(|byte| byte ^ 0x36).collect();
                let inner = Md2::new().chain_update(&key).chain_update(&message).finalize();
                assert_eq!(&hex(&inner), expected, "{}", vector.name);
            }
            assert_eq!(hex(&answer(&request, &devices)), vector.out, "{}", vector.name);
        }
    }

    #[test]
    fn plain_strings() {
        // Text, MD2 without key, keyed digest.
        let expected = [
            ("", "8350e5a3e24c153df2275c9f80692773", "f66b07aba4a875ea140c2cc013a41c6a"),
            ("a", "32ec01ec4a6dac72c0ab96fb34c0b5d1", "dbd6de4ac6a157db26236e8d24af57ef"),
            ("abc", "da853b0d3f88d99b30283a69e6ded6bb", "815f118c9ab33645d4222c484070ab79"),
            (
                "0123456789abcde",
                "d95629645108a20ab4d70e8545e0723b",
                "7d31c9da1694f0677703b3eb7cd8525e",
            ),
            (
                "0123456789abcdef",
                "12c8dfa285f14e1af8c5254e7092d0d3",
                "794fb46b7da44efd1a0cff337e2406ed",
            ),
            (
                "0123456789abcdefg",
                "e4d0efded5ef7b6843a5ba47e1171347",
                "87722572cf60b8a9978457d7ecb47ac9",
            ),
            (
                "0123456789abcdef0123456789abcdef",
                "47c291dfc979fbae4a75cd477bc96cdd",
                "3c7a3242fb922a89d3c6958ee8e7649c",
            ),
            (
                "message digest",
                "ab4f496bfb2a530b219ff33031fe06b0",
                "d00485fa90db48030d4dc7dba8015ac7",
            ),
        ];
        for (text, plain, keyed) in expected {
            assert_eq!(hex(&Md2::digest(text)), plain, "{text:?}");
            assert_eq!(hex(&digest(text.as_bytes())), keyed, "{text:?}");
        }
    }
}
