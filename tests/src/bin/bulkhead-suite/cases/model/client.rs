//! A client with volumes of its own, each of which the model knows.

use std::fs::{self, File};
use std::io::{ErrorKind as IoErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Request, Response};
use bulkhead_tests::helper::HelperClient;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;

use super::Progress;
use super::volume::{Kind, Model, Step, TARGETS};

/// How many volumes each client has.
const VOLUMES: usize = 6;
/// How many operations lie between two looks at the host.
const BETWEEN_LOOKS: usize = 40;

pub struct Client {
    socket: PathBuf,
    publish: PathBuf,
    patience: Duration,
    connection: Option<HelperClient>,
    random: Random,
    models: Vec<Model>,
}

impl Client {
    pub fn new(rig: &Rig, number: usize, seed: u64) -> Self {
        let pool = |index: usize| rig.pools[index % rig.pools.len()].name.parse().expect("a name");
        let models = (0..VOLUMES).map(|index| Model::new(format!("model-{number}-{index}"), pool(index)));
        Self {
            socket: rig.helper_socket(),
            publish: rig.publish_directory(),
            patience: rig.patience(Duration::from_secs(30)),
            connection: None,
            random: Random::new(seed * 1000 + number as u64),
            models: models.collect(),
        }
    }

    /// Does random operations until it is over.
    pub fn work(&mut self, progress: &Progress) -> Result<()> {
        for number in 1.. {
            if progress.over.load(Relaxed) {
                break;
            }
            let done = self.operate().and_then(|()| if number % BETWEEN_LOOKS == 0 { self.look() } else { Ok(()) });
            done.inspect_err(|_| progress.over.store(true, Relaxed))?;
            progress.operations.fetch_add(1, Relaxed);
        }
        self.look()
    }

    fn operate(&mut self) -> Result<()> {
        let index = self.random.below(self.models.len());
        let step = Step::random(&mut self.random);
        self.step(index, step)
    }

    fn step(&mut self, index: usize, step: Step) -> Result<()> {
        let model = self.models[index].clone();
        let (answer, interrupted) = self.insist(&model.request(step))?;
        match (answer, model.answer(step)) {
            (Ok(_), Ok(after)) => self.models[index] = after,
            (Err(error), Err(kind)) if error.kind == kind => {}
            // Deleted volumes take up room until they are empty.
            (Err(error), Ok(_))
                if matches!(step, Step::Create(..) | Step::Grow(_))
                    && matches!(error.kind, ErrorKind::NoRoom { .. }) => {}
            // The first attempt, of which only the answer was lost, has made the second one superfluous.
            (Err(error), Ok(after)) if interrupted && after.answer(step).err() == Some(error.kind) => {
                self.models[index] = after;
            }
            (answer, wanted) => bail!("{step:?} of {model:?} is answered with {answer:?}, and not {wanted:?}"),
        }
        self.mark(index)
    }

    /// Repeats a request until it is answered with something other than `Busy`. Returns whether an answer was lost.
    fn insist(&mut self, request: &Request) -> Result<(Response, bool)> {
        let begun = Instant::now();
        let mut interrupted = false;
        loop {
            let asked = match &self.connection {
                Some(connection) => connection.request(request),
                None => HelperClient::welcomed(&self.socket)
                    .map(|new| self.connection.insert(new))
                    .and_then(|connection| connection.request(request)),
            };
            match asked {
                Ok(Err(error)) if error.kind == ErrorKind::Busy && begun.elapsed() < self.patience => {}
                Ok(answer) => return Ok((answer, interrupted)),
                Err(error) => {
                    self.connection = None;
                    interrupted = true;
                    ensure!(begun.elapsed() < self.patience, "{request:?} is not answered: {error:#}");
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes the volume's id into it, through a target that can be written to.
    fn mark(&self, index: usize) -> Result<()> {
        let model = &self.models[index];
        let Some((at, _)) = model.published.iter().find(|(_, read_only)| !**read_only) else { return Ok(()) };
        let target = self.publish.join(model.target(*at));
        let path = if model.exists == Some(Kind::Directory) { target.join("id") } else { target };
        let mut file =
            File::options().write(true).create(model.exists == Some(Kind::Directory)).truncate(false).open(&path)?;
        file.write_all(&block(&model.id)).with_context(|| format!("write to {}", path.display()))
    }

    /// Compares the host with the model: what is mounted at each target shows the volume, and nothing else is mounted.
    fn look(&self) -> Result<()> {
        for model in &self.models {
            for at in 0..TARGETS {
                let target = self.publish.join(model.target(at));
                let mounts = mounts::at(&target)?;
                let Some(read_only) = model.published.get(&at) else {
                    ensure!(mounts.is_empty(), "{model:?}: at target {at} is {mounts:?}");
                    ensure!(!target.exists(), "{model:?}: target {at} is left");
                    continue;
                };
                ensure!(mounts.len() == 1, "{model:?}: at target {at} is {mounts:?}");
                self.check_shows(model, &target, *read_only).with_context(|| format!("{model:?}: target {at}"))?;
            }
        }
        Ok(())
    }

    fn check_shows(&self, model: &Model, target: &std::path::Path, read_only: bool) -> Result<()> {
        let is_directory = model.exists == Some(Kind::Directory);
        ensure!(is_directory || fs::metadata(target)?.file_type().is_block_device(), "it is no device");
        let path = if is_directory { target.join("id") } else { target.to_owned() };
        let mut found = vec![0; 512];
        match File::open(&path).and_then(|mut file| file.read_exact(&mut found)) {
            // It was never published where it can be written to.
            Err(error) if error.kind() == IoErrorKind::NotFound && is_directory => return Ok(()),
            read => read?,
        }
        let unwritten = found.iter().all(|byte| *byte == 0);
        ensure!(unwritten || found == block(&model.id), "it shows {:?}", String::from_utf8_lossy(&found[..16]));
        if read_only {
            ensure!(
                File::options()
                    .write(true)
                    .open(&path)
                    .and_then(|mut file| { file.write_all(&found).and_then(|()| file.sync_all()) })
                    .is_err(),
                "it can be written to"
            );
        }
        Ok(())
    }

    /// Unpublishes and deletes everything.
    pub fn undo(&mut self) -> Result<()> {
        for index in 0..self.models.len() {
            for at in 0..TARGETS {
                let is_block = self.models[index].exists == Some(Kind::Block);
                self.step(index, if is_block { Step::Remove(at) } else { Step::Unmount(at) })?;
            }
            self.step(index, Step::Delete)?;
        }
        self.look()
    }
}

/// The first block of a volume with that id.
fn block(id: &str) -> Vec<u8> {
    let mut block = id.as_bytes().to_vec();
    block.resize(512, b'.');
    block
}
