//! A process that an attacker has taken over: it makes system calls of the attacker's choice (ptrace(2)), within
//! everything that confines it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::wait;

/// The instruction that enters the kernel.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Space below the stack pointer that the thread's own code may be using, and what is passed to the kernel.
const ROOM: u64 = 16 << 10;

/// A stopped thread. Only the thread that created this may use it; the stopped one resumes where it was when this is
/// dropped.
#[derive(Debug)]
pub struct Takeover {
    thread: Pid,
    /// Where it was stopped, in a blocking system call.
    registers: libc::user_regs_struct,
    memory: File,
    ended: bool,
}

/// An argument of a system call.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A number or a descriptor.
    Number(i64),
    /// The address of these bytes.
    Bytes(&'a [u8]),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what was asked, and returned this.
    Done(i64),
    /// It was refused.
    Refused(Errno),
    /// The process was killed for it.
    Killed,
}

impl Takeover {
    /// Stops a thread as soon as it blocks in a system call.
    pub fn of(thread: i32, limit: Duration) -> Result<Self> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{thread}/mem"))?;
        let thread = Pid::from_raw(thread);
        let mut registers = None;
        wait::until(limit, || {
            ptrace::attach(thread).context("attach to the thread")?;
            let stopped = waitpid(thread, None)?;
            ensure!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
            let found = ptrace::getregs(thread)?;
            let mut instruction = [0; SYSCALL.len()];
            memory.read_exact_at(&mut instruction, found.rip.wrapping_sub(2))?;
            if instruction == SYSCALL && found.orig_rax != u64::MAX {
                registers = Some(found);
                return Ok(());
            }
            ptrace::detach(thread, None)?;
            bail!("thread {thread} is not in a system call");
        })?;
        Ok(Self { thread, registers: registers.context("registers")?, memory, ended: false })
    }

    /// Returns where the first bytes that are passed to a call are in its memory.
    pub fn address(&self) -> u64 {
        self.registers.rsp.wrapping_sub(ROOM) & !15
    }

    /// The first bytes that were passed to the last call, as they are now.
    pub fn read(&self, length: usize) -> Result<Vec<u8>> {
        let mut found = vec![0; length];
        self.memory.read_exact_at(&mut found, self.address())?;
        Ok(found)
    }

    /// Makes the thread perform a system call.
    pub fn call(&mut self, number: i64, arguments: &[Argument]) -> Result<Outcome> {
        let mut values = [0_u64; 6];
        let mut room = self.address();
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Number(number) => number.cast_unsigned(),
                Argument::Bytes(bytes) => {
                    let at = room;
                    self.memory.write_all_at(bytes, at)?;
                    room += u64::try_from(bytes.len())?.next_multiple_of(16);
                    at
                }
            };
        }
        let [rdi, rsi, rdx, r10, r8, r9] = values;
        // An orig_rax of -1 tells the kernel that there is no interrupted call to restart.
        let (rip, orig_rax) = (self.registers.rip.wrapping_sub(2), u64::MAX);
        let rax = number.cast_unsigned();
        let registers = libc::user_regs_struct { rax, orig_rax, rip, rdi, rsi, rdx, r10, r8, r9, ..self.registers };
        ptrace::setregs(self.thread, registers)?;
        ptrace::step(self.thread, None)?;
        match waitpid(self.thread, None)? {
            WaitStatus::Stopped(..) => {}
            WaitStatus::Signaled(..) | WaitStatus::Exited(..) => {
                self.ended = true;
                return Ok(Outcome::Killed);
            }
            other => bail!("the thread is {other:?}"),
        }
        let returned = ptrace::getregs(self.thread)?.rax.cast_signed();
        Ok(match i32::try_from(returned) {
            Ok(error @ -4095..=-1) => Outcome::Refused(Errno::from_raw(-error)),
            _ => Outcome::Done(returned),
        })
    }
}

impl Drop for Takeover {
    fn drop(&mut self) {
        if !self.ended {
            let _ = ptrace::setregs(self.thread, self.registers);
            let _ = ptrace::detach(self.thread, None);
        }
    }
}
