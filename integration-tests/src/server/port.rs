//! Ports of our own: free, and still ours while nobody listens on them.
//!
//! A server that is killed and started again must find its port free, and clients that dial it meanwhile must be
//! rejected. Hence two rules. Ports lie below the range from which the kernel takes ports for outgoing connections;
//! above it, a client that keeps dialling a dead server can be given that very port and connect to itself. And a port
//! is held by a UDP socket on the same number: TCP does not see it, every other test process does.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// A port on loopback; nobody else of this suite is given it until this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _held: UdpSocket,
}

impl Port {
    /// The next one that is free. A process goes round all ports before it uses one twice, so that a late client of
    /// one test does not find the server of another.
    pub fn take() -> Self {
        // Processes start at places of their own, or they would meet at every step.
        static NEXT: LazyLock<AtomicU16> =
            LazyLock::new(|| AtomicU16::new((RandomState::new().hash_one("port") % u64::from(COUNT)) as u16));
        (0..COUNT)
            .map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)
            .find_map(Self::hold)
            .expect("of 20,000 ports on loopback one is free")
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    fn hold(number: u16) -> Option<Self> {
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        // A foreign program may listen here. If it comes a moment later, the server says so and is given another port.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _held: held })
    }
}
