//! The demonstration: the whole life of real volumes, across kills and a reboot, with every step checked.
//!
//! Everything is done with `bulkheadctl`, as by a person at a prompt; the checks look at the volumes themselves.

mod act;
mod node;
mod prompt;
mod writer;

use std::process::ExitCode;

use anyhow::Result;
use bulkhead_tests::keeper;
use bulkhead_tests::run_options::Phase;
use clap::Parser;

use node::Node;

/// Shows volumes through their whole life, and checks every step.
#[derive(Debug, Parser)]
struct Options {
    /// Before or after the reboot
    #[arg(long)]
    phase: Phase,
    /// On this host: with a pool of its own on a loop device, without enforced sizes
    #[arg(long)]
    here: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let shown = Node::new(options.here, options.phase).and_then(|mut node| {
        run(&mut node, options.phase).inspect_err(|_| {
            keeper::print_logs(node.rig.work());
            node.rig.abandon();
        })
    });
    let Err(error) = shown else { return ExitCode::SUCCESS };
    println!("FAILED: {error:#}");
    if options.here
        && let Err(error) = node::tidy(true)
    {
        println!("FAILED to tidy up: {error:#}");
    }
    ExitCode::FAILURE
}

fn run(node: &mut Node, phase: Phase) -> Result<()> {
    match phase {
        Phase::BeforeReboot => {
            act::prepare(node)?;
            act::make(node)?;
            act::use_them(node)?;
            act::feel_the_size(node)?;
            act::read_only(node)?;
            act::grow_while_written(node)?;
            act::kill_both_while_written(node)?;
            act::leave(node)
        }
        Phase::AfterReboot => {
            act::come_back(node)?;
            act::find_again(node)?;
            act::remove(node)
        }
    }
}
