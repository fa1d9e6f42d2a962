//! A shell with access to the cluster, and what it says to try.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::commands::Printed;
use bulkhead_tests::documented::first_claim;
use bulkhead_tests::node::{Node, PATIENCE};

use crate::story::Story;

/// What somebody who has no command of their own may want to try. Each line has a command and, behind two spaces, what it
/// shows. There is no registry: the images are busybox:1 and bulkhead-shell:test.
const TO_TRY: &str = "\
This shell has kubectl, and kubectl bulkhead, for a cluster of one node. To try:
  kubectl bulkhead doctor             whether all is well
  kubectl bulkhead pools              the node's pool: its size, its room, its condition
  kubectl apply -f $FIRST_CLAIM       a claim, and a pod that uses it, as in docs/kubernetes.md
  kubectl wait --for=condition=Ready --timeout=240s pod/first
  kubectl exec first -- df -h /data   the volume, as the pod sees it
  kubectl bulkhead volumes -o wide    the volume with its claim, what is used of it, and its pods
  kubectl debug node/node-1 -it --image=busybox:1 --profile=sysadmin -- chroot /host sh
                                      a shell on the node; the pool is in /srv/bulkhead/default
Leave the shell, and everything is taken down again.
";

/// Runs a command or, without one, says what to try and leaves the terminal to a shell.
pub fn run(node: &Node, command: Option<&str>) -> Result<ExitCode> {
    let mut shell = prepared(node)?;
    if let Some(command) = command {
        shell.args(["-c", command]);
    } else {
        // Standard input is the machine.
        let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let mut terminal: File = terminal.context(
            "there is no terminal for a shell: give a command, as in cargo xtask node -- 'kubectl get nodes'",
        )?;
        terminal.write_all(TO_TRY.as_bytes())?;
        shell.arg("-i").stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
    }
    let status = shell.status().context("start a shell")?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// A shell that finds kubectl, its plugin and the cluster.
fn prepared(node: &Node) -> Result<Command> {
    let programs = node.kubectl.program.parent().context("kubectl has no directory")?;
    // kubectl-bulkhead is beside this program.
    let own = env::current_exe().context("find this program")?;
    let own = own.parent().context("this program is in no directory")?;
    let path = env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", programs.display(), own.display());
    let claim = node.kubectl.kubeconfig.with_file_name("first-claim.yaml");
    fs::write(&claim, first_claim()?)?;
    let mut shell = Command::new("sh");
    shell.env("PATH", path).env("KUBECONFIG", &node.kubectl.kubeconfig).env("FIRST_CLAIM", claim);
    Ok(shell)
}

/// Each command in turn, with somebody who looks at the pool's directory in the shell on the node.
pub fn what_it_says_to_try_works(story: &mut Story<'_>) -> Result<()> {
    let commands: Vec<_> = TO_TRY.lines().filter_map(|line| line.strip_prefix("  kubectl")).collect();
    ensure!(commands.len() == 7, "{commands:?}");
    for rest in commands {
        let command = format!("kubectl{}", rest.split("  ").next().unwrap_or_default());
        let mut shell = prepared(story.node)?;
        let told = if command.contains(" -it ") {
            on_a_terminal(&mut shell, &command)
        } else {
            Printed::by(shell.args(["-c", &command]))?.succeeded()
        };
        let told = told.with_context(|| command.clone())?;
        for (part, shown) in [
            ("bulkhead pools", "healthy"),
            ("df -h", "300.0M"),
            ("bulkhead volumes", "default/first"),
            ("debug node", ".bulkhead"),
        ] {
            ensure!(!command.contains(part) || told.contains(shown), "{command} does not show {shown}: {told}");
        }
    }
    let kubectl = &story.node.kubectl;
    kubectl.delete(&["pod/first", "persistentvolumeclaim/first"])?;
    let pods = kubectl.run(&["get", "pods", "--output", "name"])?;
    for pod in pods.lines().filter(|pod| pod.starts_with("pod/node-debugger-")) {
        kubectl.delete(&[pod])?;
    }
    Ok(())
}

/// Returns what a shell that a command opens on a terminal shows to somebody who waits for its prompt, looks at the
/// pool's directory, and leaves.
fn on_a_terminal(shell: &mut Command, command: &str) -> Result<String> {
    let seconds = PATIENCE.as_secs();
    let line = format!("exec timeout {seconds} script --quiet --return --command '{command}' /dev/null");
    let mut child = shell.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("its input")?;
    let mut output = child.stdout.take().context("its output")?;
    let (mut told, mut part) = (String::new(), [0; 1024]);
    loop {
        let read = output.read(&mut part)?;
        let had_prompt = told.contains("# ");
        told += &String::from_utf8_lossy(part.get(..read).unwrap_or_default());
        if read == 0 {
            break;
        }
        if !had_prompt && told.contains("# ") {
            input.write_all(b"ls -a /srv/bulkhead/default\nexit\n")?;
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{status}: {told}");
    Ok(told)
}
