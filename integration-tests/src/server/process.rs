//! Child processes that cannot outlive the tests.
//!
//! A [`Process`] is killed when it is dropped. When the test process goes in any other way, be it the end of `main`
//! with servers in statics, a panic that aborts or a kill -9, the kernel kills the child: `setpriv` asks it to
//! (`PR_SET_PDEATHSIG`) and then becomes the program, so that the process id is the program's own. The kernel watches
//! the thread that started the child, and the threads of tests end early; so one thread that never ends starts them
//! all.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A running child. All signals take `&self`: a test stops a server while a task talks to it.
#[derive(Debug)]
pub struct Process {
    id: u32,
    child: Mutex<Child>,
}

impl Process {
    /// Starts what [`command`] began.
    pub fn start(command: Command) -> io::Result<Self> {
        let child = start_by_the_lasting_thread(command)?;
        Ok(Self { id: child.id(), child: Mutex::new(child) })
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether it has not ended. A stopped process runs in this sense.
    pub fn runs(&self) -> bool {
        self.with(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// SIGSTOP; returns when it stands still.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let events = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid()), events).expect("a child can be waited for");
        assert!(status.is_some_and(|status| status.stopped()), "process {} ended instead of stopping", self.id);
    }

    /// SIGCONT.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM: what an orchestrator sends.
    pub fn term(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGKILL; returns when it is gone. Nothing happens if it already is.
    pub fn kill(&self) {
        self.with(|child| {
            let _ = child.kill();
            let _ = child.wait();
        });
    }

    /// The ends of its pipes, which [`Process::start`] was asked to make.
    pub(super) fn take_pipes(&self) -> (ChildStdin, ChildStdout) {
        let pipes = self.with(|child| child.stdin.take().zip(child.stdout.take()));
        pipes.expect("a child with pipes, taken once")
    }

    fn signal(&self, signal: Signal) {
        // An ended child keeps its id until it is waited for, and `runs` is what waits: under the lock, so that no
        // signal goes to a stranger.
        self.with(|child| {
            assert!(matches!(child.try_wait(), Ok(None)), "process {} has ended", self.id);
            kill_process(self.pid(), signal).expect("a child can be signalled");
        });
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.id.cast_signed()).expect("no process has the id 0")
    }

    fn with<T>(&self, work: impl FnOnce(&mut Child) -> T) -> T {
        work(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command that dies with this process.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    // Every Debian has setpriv; elsewhere drop has to do.
    let Some(setpriv) = find("setpriv") else { return Command::new(program) };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Where a program is, if it is on the path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

type Order = (Command, SyncSender<io::Result<Child>>);

fn start_by_the_lasting_thread(command: Command) -> io::Result<Child> {
    static ORDERS: LazyLock<Sender<Order>> = LazyLock::new(|| {
        let (orders, taken) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, started) in taken {
                let _ = started.send(command.spawn());
            }
        });
        orders
    });
    let (started, child) = sync_channel(1);
    ORDERS.send((command, started)).expect("the thread lasts");
    child.recv().expect("the thread answers")
}
