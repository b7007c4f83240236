//! A replica of the fleet under test as a process: its only argument is its setup as JSON; orders come line by line on
//! its input, and each is answered by a line with its report. It ends with its input.

#![allow(clippy::expect_used)] // a panic is how it says no

use std::io::{BufRead, Write, stdin, stdout};

use phalanx_integration_tests::replica::{Order, Setup, Worker};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

fn main() {
    let setup = std::env::args().nth(1).expect("a setup");
    let setup: Setup = serde_json::from_str(&setup).expect("a setup as JSON");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(serve(&setup));
}

async fn serve(setup: &Setup) {
    let mut worker = Worker::new(setup);
    let mut orders = read_orders();
    while let Some(order) = orders.recv().await {
        let report = worker.obey(order).await;
        let line = serde_json::to_string(&report).expect("plain data");
        writeln!(stdout(), "{line}").expect("somebody who listens");
    }
}

/// By a thread, so that the end of the input is noticed whatever the replica is at.
fn read_orders() -> UnboundedReceiver<Order> {
    let (order, orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            let read = serde_json::from_str(&line).expect("an order as JSON");
            if order.send(read).is_err() {
                return;
            }
        }
        // At once, though an order may be under way that waits for callers.
        std::process::exit(0);
    });
    orders
}
