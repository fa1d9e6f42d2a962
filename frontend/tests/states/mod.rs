//! Every state that a volume or a pool can be in: how a helper says it, or how the frontend finds it.

use bulkhead_frontend::volumes::Volumes;
use bulkhead_model::volumes::{Ailment, ConditionKind, PoolCondition, Severity, Subject};
use bulkhead_protocol::{Condition, ErrorKind, PoolName, Separation, VolumeId};

/// The pool that has it, or whose volume has it.
pub const POOL: &str = "fast";

/// What the helper says where its words are told as they are.
pub const WORDS: &str = "the reason in the helper's words";

/// Something that can be wrong.
#[derive(Clone, Debug)]
pub enum State {
    Of(PoolCondition),
    Without(Ailment),
}

/// What the helper says of the pool, and of the volume in it.
#[derive(Clone, Debug)]
pub struct Said {
    pub pool: Result<Vec<Condition>, ErrorKind>,
    pub volume: Result<Option<Condition>, ErrorKind>,
}

impl State {
    /// Every state. Each kind of condition has an example, or the test fails.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kind in ConditionKind::ALL {
            let of_kind = examples().into_iter().filter(|example| example.kind() == kind).map(Self::Of);
            let before = all.len();
            all.extend(of_kind);
            assert!(all.len() > before, "there is no example of {}", kind.name);
        }
        all.extend(Ailment::WITHOUT_CONDITION.iter().copied().map(Self::Without));
        all
    }

    pub fn said(&self) -> Said {
        let (well, broken) = (Said { pool: Ok(Vec::new()), volume: Ok(None) }, ErrorKind::PoolBroken);
        match self {
            Self::Of(PoolCondition::Reported(condition)) => match self.subject() {
                Subject::Pool => Said { pool: Ok(vec![condition.clone()]), ..well },
                Subject::Volume => Said { volume: Ok(Some(condition.clone())), ..well },
            },
            Self::Of(PoolCondition::NotServed(_)) => Said { pool: Err(broken), volume: Err(broken) },
            Self::Of(PoolCondition::Errors(_)) => Said { pool: Err(ErrorKind::Io(5)), volume: Err(ErrorKind::Io(5)) },
            Self::Of(PoolCondition::Absent(_)) => Said { pool: Err(broken), ..well },
            Self::Without(Ailment::MISSING) => Said { volume: Err(ErrorKind::NotFound), ..well },
            Self::Without(Ailment::UNSERVED) => Said { volume: Err(broken), ..well },
            Self::Without(_) => well,
        }
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Of(condition) => condition.kind().subject,
            Self::Without(_) => Subject::Volume,
        }
    }

    /// Whether the volumes of the pool have failed with it, as they are listed.
    pub fn fails_volumes(&self) -> bool {
        let is_reported = matches!(self, Self::Of(PoolCondition::Reported(_)));
        let has_failed = |condition: &PoolCondition| condition.kind().severity == Severity::Failure;
        is_reported && self.subject() == Subject::Pool && matches!(self, Self::Of(condition) if has_failed(condition))
    }

    /// What the frontend itself has to find out.
    pub fn find(&self, volumes: &Volumes, volume: &VolumeId) {
        match self {
            Self::Without(Ailment::MISSING) => volumes.record_missing(&[volume.clone()].into()),
            Self::Without(Ailment::UNSERVED) => volumes.record_unserved([(volume.clone(), WORDS.to_owned())].into()),
            Self::Without(Ailment::STUCK) => {
                let stuck = (Some(pool()), "the volume cannot be unpublished".to_owned());
                volumes.record_stuck([(volume.clone(), stuck)].into());
            }
            Self::Of(_) | Self::Without(Ailment::HELPER_AWAY) => {}
            Self::Without(unknown) => panic!("nobody brings about {unknown:?}"),
        }
    }

    /// Its name in the table.
    pub fn label(&self) -> String {
        match self {
            Self::Of(PoolCondition::Reported(Condition::ImageSize { found, recorded })) => {
                let which = if found < recorded { "shorter" } else { "longer" };
                format!("`image_size`, {which}")
            }
            Self::Without(Ailment::UNSERVED) => "`not_served`, of a volume alone".to_owned(),
            Self::Of(condition) => format!("`{}`", condition.kind().name),
            Self::Without(ailment) => format!("`{}`", ailment.name),
        }
    }
}

/// One condition of each kind, and two where their meaning depends on figures.
fn examples() -> Vec<PoolCondition> {
    let (gibibyte, directory) = (1 << 30, "kubelet".parse().unwrap());
    let reported = [
        Condition::Unconfined,
        Condition::ShutDown,
        Condition::ReadOnly,
        Condition::NotAnswering { seconds: 20 },
        Condition::Apart { directory, cause: Separation::Covered },
        Condition::NotServed { volumes: 1 },
        Condition::Overpromised { promised: 9 * gibibyte, limit: 8 * gibibyte },
        Condition::QuotasOff,
        Condition::DefaultLimits,
        Condition::QuotaEvasion { bytes: gibibyte, inodes: 9, first: 4711, more: false },
        Condition::QuotaFiles { bytes: gibibyte },
        Condition::NoInodes,
        Condition::NotReleased { volumes: 1, project: 4711 },
        Condition::VolumeLimit { volumes: 20_000, limit: 20_000 },
        Condition::NoExec,
        Condition::NotEnforced,
        Condition::NotInspected { errno: 5 },
        Condition::ImageSize { found: gibibyte, recorded: 2 * gibibyte },
        Condition::ImageSize { found: 2 * gibibyte, recorded: gibibyte },
        Condition::Oversized { used: 2 * gibibyte },
        Condition::OtherLimits { bytes: gibibyte, inodes: 0, soft: false },
        Condition::Other,
        Condition::FilesystemShutDown,
        Condition::NotMountable { errno: 117 },
        Condition::NotDirect,
        Condition::Unmounted,
    ];
    let told = [PoolCondition::NotServed, PoolCondition::Absent, PoolCondition::Errors];
    let told = told.map(|condition: fn(String) -> PoolCondition| condition(WORDS.to_owned()));
    reported.map(PoolCondition::Reported).into_iter().chain(told).collect()
}

/// The pool.
pub fn pool() -> PoolName {
    POOL.parse().unwrap()
}
