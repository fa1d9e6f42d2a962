use super::*;

const GIB: u64 = 1 << 30;

fn told() -> Told {
    Told { room: 100 * GIB, filesystems: 8, volumes: 0 }
}

fn ledger(share: &str, volumes: Option<u32>) -> Ledger {
    Ledger::new(Limits { share: Some(share.parse().unwrap()), volumes })
}

fn id(name: &str) -> VolumeId {
    name.parse().unwrap()
}

fn cost(bytes: u64) -> Cost {
    Cost { pool: "fast".parse().unwrap(), bytes, is_filesystem: false }
}

fn reserve(ledger: &Ledger, namespace: &str, name: &str, bytes: u64) -> Result<Reservation, String> {
    ledger.reserve(namespace, &id(name), cost(bytes), told()).map_err(|over| over.to_string())
}

#[test]
fn a_share_is_a_percentage() {
    assert_eq!("25%".parse::<Share>().unwrap().to_string(), "25%");
    for text in ["", "%", "0%", "101%", "25", "-1%", "+5%", "2.5%", "25 %", "256%"] {
        assert!(text.parse::<Share>().is_err(), "{text}");
    }
}

#[test]
fn of_several_that_are_made_at_the_same_time_only_those_pass_that_fit_together() {
    let ledger = ledger("25%", None);
    let reserved: Vec<_> = (0..16).map(|number| reserve(&ledger, "a", &format!("pvc-{number}"), 5 * GIB)).collect();
    assert_eq!(reserved.iter().filter(|reserved| reserved.is_ok()).count(), 5);
    let refusal = reserved.into_iter().find_map(Result::err).unwrap();
    assert_eq!(
        refusal,
        "namespace a may have 25 GiB of pool fast on this node; its other volumes and snapshots take 25 GiB, and this one \
         takes 5 GiB: delete some, or ask the node's operator for a larger share"
    );
    // All are dropped by now: none has been made.
    drop(reserve(&ledger, "a", "pvc-0", 25 * GIB).unwrap());
}

#[test]
fn what_is_made_counts_until_it_is_gone_and_others_are_served() {
    let ledger = ledger("25%", None);
    reserve(&ledger, "a", "pvc-1", 20 * GIB).unwrap().keep(None);
    reserve(&ledger, "a", "snap-1", 10 * GIB).err().unwrap();
    reserve(&ledger, "b", "pvc-2", 25 * GIB).unwrap().keep(None);
    // What was reserved too much for a snapshot is given back.
    reserve(&ledger, "a", "snap-1", 5 * GIB).unwrap().keep(Some(cost(GIB)));
    reserve(&ledger, "a", "snap-2", 4 * GIB).unwrap().keep(None);
    reserve(&ledger, "a", "snap-3", 1).err().unwrap();
    ledger.forget(&id("pvc-1"));
    reserve(&ledger, "a", "snap-3", 20 * GIB).unwrap().keep(None);
}

#[test]
fn what_exists_may_be_found_again_and_only_its_growth_needs_room() {
    let ledger = ledger("25%", None);
    reserve(&ledger, "a", "pvc-1", 25 * GIB).unwrap().keep(None);
    reserve(&ledger, "a", "pvc-1", 25 * GIB).unwrap().keep(None);
    let refusal = reserve(&ledger, "a", "pvc-1", 26 * GIB).err().unwrap();
    assert!(refusal.contains("take 0 B, and this one takes 26 GiB"), "{refusal}");
    // Its operator has set a smaller share since.
    let smaller = self::ledger("1%", None);
    smaller.enter(id("pvc-1"), Some("a"), cost(2 * GIB), Some(2 * GIB));
    reserve(&smaller, "a", "pvc-1", 2 * GIB).unwrap().keep(None);
    reserve(&smaller, "a", "pvc-2", 1).err().unwrap();
}

#[test]
fn the_number_is_limited_over_all_pools_and_that_of_filesystems_in_one() {
    let ledger = ledger("100%", Some(3));
    let in_pool = |pool: &str, name: &str, is_filesystem| {
        let cost = Cost { pool: pool.parse().unwrap(), bytes: 1, is_filesystem };
        ledger.reserve("a", &id(name), cost, told()).map_err(|over| over.to_string())
    };
    in_pool("fast", "pvc-1", false).unwrap().keep(None);
    in_pool("slow", "pvc-2", false).unwrap().keep(None);
    in_pool("fast", "snap-1", false).unwrap().keep(None);
    let refusal = in_pool("slow", "pvc-3", false).err().unwrap();
    assert!(refusal.contains("may have 3 volumes and snapshots on this node, and has 3"), "{refusal}");
    let quarter = self::ledger("25%", None);
    let image = |name| quarter.reserve("a", &id(name), Cost { is_filesystem: true, ..cost(1) }, told());
    image("pvc-1").unwrap().keep(None);
    image("pvc-2").unwrap().keep(None);
    assert!(image("pvc-3").err().unwrap().to_string().contains("may have 2 of the filesystems in images"));
    assert_eq!(quarter.limits().unwrap().most(told()).volumes, 5000, "the same share of what a node has by default");
}

#[test]
fn what_has_no_note_counts_for_nobody_until_it_has_one() {
    let ledger = ledger("25%", None);
    ledger.enter(id("pvc-1"), None, cost(20 * GIB), Some(1));
    drop(reserve(&ledger, "a", "pvc-2", 20 * GIB).unwrap());
    ledger.note(&id("pvc-1"), "a");
    reserve(&ledger, "a", "pvc-2", 20 * GIB).err().unwrap();
    let holdings = ledger.holdings();
    let of_a = holdings[&"fast".parse().unwrap()][&Some(Arc::from("a"))];
    assert_eq!(of_a, Amount { bytes: 20 * GIB, filesystems: 0, volumes: 1 });
    let most = ledger.limits().unwrap().most(told());
    assert!((of_a.ratio(&most) - 0.8).abs() < 1e-9);
}

#[tokio::test]
async fn what_is_not_listed_any_more_is_forgotten_unless_it_was_made_meanwhile() {
    let ledger = ledger("25%", None);
    ledger.enter(id("gone"), Some("a"), cost(GIB), Some(1));
    ledger.enter(id("there"), Some("a"), cost(GIB), Some(1));
    let pool = Cost { pool: "away".parse().unwrap(), ..cost(GIB) };
    ledger.enter(id("unseen"), Some("a"), pool, Some(1));
    let then = Instant::now();
    reserve(&ledger, "a", "new", GIB).unwrap().keep(None);
    ledger.keep_only(&[id("there")].into(), &["fast".parse().unwrap()].into(), then);
    assert_eq!(["gone", "there", "unseen", "new"].map(|name| ledger.has(&id(name), None)), [false, true, true, true]);
    assert!(!ledger.has(&id("new"), Some(GIB)), "its size is still to be seen");
}

#[test]
fn without_limits_nothing_is_kept() {
    let ledger = Ledger::default();
    reserve(&ledger, "a", "pvc-1", u64::MAX).unwrap().keep(None);
    assert!(ledger.holdings().is_empty() && ledger.limits().is_none());
    assert!(Ledger::new(Limits { share: None, volumes: None }).limits().is_none());
}

#[test]
fn a_snapshot_may_turn_out_to_be_small_and_one_that_did_not_is_not_tried_again_soon() {
    let ledger = ledger("25%", None);
    let (source, [one, other, third]) = (id("pvc-1"), ["snap-1", "snap-2", "snap-3"].map(id));
    let reserve = |snapshot| ledger.reserve_snapshot("a", (&source, snapshot), cost(20 * GIB), told());
    let (reservation, bytes) = reserve(&one).unwrap();
    assert_eq!(bytes, 20 * GIB, "there is room for all that may have been written");
    let (rest, bytes) = reserve(&other).unwrap();
    assert_eq!(bytes, 5 * GIB, "or for what is left");
    assert!(reserve(&third).is_err(), "which nobody else gets meanwhile");
    reservation.keep(Some(cost(GIB)));
    drop(rest);
    ledger.was_too_large(&source, 25 * GIB);
    let refusal = ledger.reserve_snapshot("a", (&source, &other), cost(30 * GIB), told()).err().unwrap().to_string();
    assert!(refusal.contains("this one takes 25 GiB"), "{refusal}");
    reserve(&other).unwrap().0.keep(None);
}

#[test]
fn a_namespace_gets_one_claim_given_back_at_a_time() {
    let ledger = ledger("25%", None);
    assert!(ledger.may_give_back("a") && ledger.may_give_back("b") && !ledger.may_give_back("a"));
}
