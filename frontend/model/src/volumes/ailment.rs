//! What is wrong, in the few words that orchestrators act on.

use bulkhead_protocol::Condition;

use super::{PoolCondition, Severity};

/// What it means for who uses a volume or a pool (CSI 1.13, VolumeHealthErrorType and StorageHealthErrorType).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It works, and needs attention.
    Degraded,
    /// It does not work.
    Inaccessible,
    /// Data is missing, or probably is: an orchestrator may have it restored from elsewhere.
    DataLoss,
}

/// What a volume or a pool suffers from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ailment {
    /// What that means.
    pub effect: Effect,
    /// Its name, as in metrics.
    pub name: &'static str,
}

/// Generates a constant for each, and the list of them: `NAME = effect "name";`.
macro_rules! without_condition {
    ($($(#[$meaning:meta])* $constant:ident = $effect:ident $name:literal;)*) => {
        impl Ailment {
            $($(#[$meaning])* pub const $constant: Self = Self { effect: Effect::$effect, name: $name };)*

            /// Those that no condition brings with it.
            pub const WITHOUT_CONDITION: &'static [Self] = &[$(Self::$constant),*];
        }
    };
}

without_condition! {
    /// The volume does not exist, and is needed.
    MISSING = DataLoss "missing";
    /// The volume exists, or may, and is not served.
    UNSERVED = Inaccessible "not_served";
    /// The volume cannot be unpublished.
    STUCK = Degraded "stuck";
    /// What serves the pools does not answer. What is published goes on working.
    HELPER_AWAY = Degraded "helper_away";
}

impl Ailment {
    /// Its name in CamelCase.
    pub fn reason(&self) -> String {
        let capital = |word: &str| {
            let (first, rest) = word.split_at_checked(1).unwrap_or_default();
            first.to_ascii_uppercase() + rest
        };
        self.name.split('_').map(capital).collect()
    }
}

impl PoolCondition {
    /// What it is for who uses the volume or the pool that has it; `None` where it is intended.
    pub fn ailment(&self) -> Option<Ailment> {
        let kind = self.kind();
        let effect = match (self, kind.severity) {
            // What was beyond its end cannot be read any more.
            (Self::Reported(Condition::ImageSize { found, recorded }), _) if found < recorded => Effect::DataLoss,
            (_, Severity::Failure) => Effect::Inaccessible,
            (_, Severity::Warning) => Effect::Degraded,
            (_, Severity::Notice) => return None,
        };
        Some(Ailment { effect, name: kind.name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(condition: Condition) -> Option<(Effect, String)> {
        PoolCondition::Reported(condition).ailment().map(|ailment| (ailment.effect, ailment.reason()))
    }

    #[test]
    fn each_condition_has_one_meaning_for_who_uses_what_has_it() {
        assert_eq!(of(Condition::ShutDown), Some((Effect::Inaccessible, "ShutDown".to_owned())));
        assert_eq!(of(Condition::QuotasOff), Some((Effect::Degraded, "QuotasOff".to_owned())));
        assert_eq!(of(Condition::NotDirect), None, "it is intended");
        let image = |found| of(Condition::ImageSize { found, recorded: 4096 }).unwrap().0;
        assert_eq!((image(4095), image(4097)), (Effect::DataLoss, Effect::Degraded));
        let absent = PoolCondition::Absent("text".to_owned());
        assert_eq!(absent.ailment(), None);
    }

    #[test]
    fn reasons_are_words_for_machines() {
        assert_eq!(Ailment::HELPER_AWAY.reason(), "HelperAway");
        assert_eq!(Ailment { effect: Effect::Degraded, name: "" }.reason(), "");
    }
}
