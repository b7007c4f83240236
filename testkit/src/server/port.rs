//! Reserved ports: free, and still reserved while no server listens on them.
//!
//! A server that is killed and restarted must find its port free, and clients that connect in between must get an error.
//! Hence two rules. Ports lie below the ephemeral range: inside it, a client that keeps connecting to a dead server can be
//! assigned that very port and connect to itself. And a port is reserved by a UDP socket on the same number, which does
//! not affect TCP and is visible to all other test processes.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// A port on loopback, reserved within this test suite until it is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _held: UdpSocket,
}

impl Port {
    /// Reserves the next free port. A process uses all other ports before it uses one twice, so that a late client of one
    /// test does not reach the server of another.
    pub fn reserve() -> Self {
        // Processes start at random ports, to avoid contention at every step.
        static NEXT: LazyLock<AtomicU16> =
            LazyLock::new(|| AtomicU16::new((RandomState::new().hash_one("port") % u64::from(COUNT)) as u16));
        (0..COUNT)
            .map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)
            .find_map(Self::hold)
            .expect("one of 20,000 ports is free")
    }

    /// Returns the port number.
    pub fn number(&self) -> u16 {
        self.number
    }

    fn hold(number: u16) -> Option<Self> {
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        // Another program may listen here. If it starts to listen later, the server fails to bind and gets another port.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _held: held })
    }
}
