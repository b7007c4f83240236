//! Child processes that cannot outlive the tests.
//!
//! A [`Process`] is killed when it is dropped. If the test process ends in any other way (the end of `main` with servers in
//! statics, an aborting panic, a kill -9), the kernel kills the child: `setpriv` requests that (`PR_SET_PDEATHSIG`) and
//! then execs the program, so that the process id is the program's own. The kernel watches the thread that started the
//! child, and test threads end early; so a thread that never ends starts all children.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A running child. Signals take `&self`, because a test stops a server while a task uses it.
#[derive(Debug)]
pub struct Process {
    id: u32,
    child: Mutex<Child>,
}

impl Process {
    /// Starts a command made by [`command`].
    pub fn start(command: Command) -> io::Result<Self> {
        let child = spawn_on_permanent_thread(command)?;
        Ok(Self { id: child.id(), child: Mutex::new(child) })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns whether it has not exited. A stopped process counts as running.
    pub fn is_running(&self) -> bool {
        self.with(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Sends SIGSTOP and waits until it has stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let events = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid()), events).expect("a child can be waited for");
        assert!(status.is_some_and(|status| status.stopped()), "process {} exited instead of stopping", self.id);
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGTERM, as an orchestrator does.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL and waits until it is gone. Does nothing if it already is.
    pub fn kill(&self) {
        self.with(|child| {
            let _ = child.kill();
            let _ = child.wait();
        });
    }

    /// Takes standard input and output. The command must have piped them.
    pub(super) fn take_pipes(&self) -> (ChildStdin, ChildStdout) {
        let pipes = self.with(|child| child.stdin.take().zip(child.stdout.take()));
        pipes.expect("piped, and taken once")
    }

    fn signal(&self, signal: Signal) {
        // An exited child keeps its id until it is waited for. `is_running` waits under the same lock, so a signal cannot
        // reach an unrelated process with a reused id.
        self.with(|child| {
            assert!(matches!(child.try_wait(), Ok(None)), "process {} has exited", self.id);
            kill_process(self.pid(), signal).expect("a child can be signalled");
        });
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.id.cast_signed()).expect("process ids are not 0")
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

/// Returns a command whose process dies with this one.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    // Debian always has setpriv; elsewhere only `Drop` cleans up.
    let Some(setpriv) = find("setpriv") else { return Command::new(program) };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Finds a program on the path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

type SpawnRequest = (Command, SyncSender<io::Result<Child>>);

fn spawn_on_permanent_thread(command: Command) -> io::Result<Child> {
    static REQUESTS: LazyLock<Sender<SpawnRequest>> = LazyLock::new(|| {
        let (requests, received) = channel::<SpawnRequest>();
        thread::spawn(move || {
            for (mut command, started) in received {
                let _ = started.send(command.spawn());
            }
        });
        requests
    });
    let (started, child) = sync_channel(1);
    REQUESTS.send((command, started)).expect("the thread never ends");
    child.recv().expect("the thread always replies")
}
