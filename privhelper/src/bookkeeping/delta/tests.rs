use super::*;
use crate::dispatch::tests::random::Random;

/// How many blocks the files of these tests have.
const BLOCKS: u64 = 300;

/// A file, as the place of each of its blocks, that is read in pages of a few extents.
fn file(places: &[Option<u64>], extents: usize) -> impl FnMut(u64) -> SysResult<Page> {
    let places = places.to_vec();
    move |from| {
        let blocks = (from..).zip(places.iter().skip(usize::try_from(from).expect("an offset")));
        let mut found =
            blocks.filter_map(|(offset, place)| Some(Extent { offset, length: 1, place: (*place)?, shared: false }));
        let page: Vec<_> = found.by_ref().take(extents).collect();
        let next = found.next().and_then(|_| page.last().map(|last| last.offset + 1));
        Ok(Page { extents: page, next })
    }
}

/// All ranges, asked for until there are none left.
fn all(new: &[Option<u64>], old: &[Option<u64>], extents: usize) -> Vec<Range> {
    let (mut ranges, mut at) = (Vec::new(), Some(0));
    while let Some(from) = at {
        let (mut new, mut old) = (Extents::new(file(new, extents)), Extents::new(file(old, extents)));
        let (found, next) = compare(&mut new, &mut old, from, BLOCKS).expect("it is read");
        assert!(found.len() <= MAX_RANGES && next.is_none_or(|next| next > from));
        ranges.extend(found);
        at = next;
    }
    ranges
}

#[test]
fn what_is_reported_is_exactly_what_has_another_place() {
    let mut random = Random::new(1);
    for _ in 0..500 {
        let spread = 1 + random.below(6);
        let mut place = |block: u64| (random.below(3) > 0).then(|| block + BLOCKS * random.below(spread) as u64);
        let [new, old]: [Vec<_>; 2] = [(0..BLOCKS).map(&mut place).collect(), (0..BLOCKS).map(&mut place).collect()];
        for extents in [1, 7, 1000] {
            let ranges = all(&new, &old, extents);
            assert!(ranges.is_sorted_by_key(|range| range.offset));
            let is_reported =
                |at: u64| ranges.iter().any(|range| (range.offset..range.offset + range.length).contains(&at));
            for (at, (there, was)) in (0..).zip(new.iter().zip(&old)) {
                assert_eq!(is_reported(at), there != was, "block {at}");
            }
        }
    }
}

#[test]
fn without_a_base_what_holds_data_is_reported() {
    let new: Vec<_> = (0..BLOCKS).map(|block| (10..20).contains(&block).then_some(block)).collect();
    assert_eq!(all(&new, &[], 3), [Range { offset: 10, length: 10 }]);
    assert_eq!(all(&[], &[], 3), []);
}

#[test]
fn a_reply_holds_no_more_ranges_than_fit_and_says_where_to_go_on() {
    let every_other: Vec<_> = (0..BLOCKS * 2).map(|block| (block % 2 == 0).then_some(block)).collect();
    let (mut new, mut old) = (Extents::new(file(&every_other, 50)), Extents::new(file(&[], 1)));
    let (ranges, next) = compare(&mut new, &mut old, 0, BLOCKS * 2).expect("it is read");
    assert_eq!((ranges.len(), next), (MAX_RANGES, Some(2 * MAX_RANGES as u64)));
}
