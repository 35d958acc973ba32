//! The counters of the splice programs by name: the order is that of `enum splice_counter` in
//! `c/offload/maps.h`.

/// Name and meaning of each.
#[rustfmt::skip]
pub const SPLICE_COUNTERS: [(&str, &str); 20] = [
    ("segments_translated", "segments that went from one connection to the other"),
    ("copies_to_socket", "copies for sockets that still deliver what they had"),
    ("kept_for_socket", "segments from before the cut"),
    ("not_judged_good", "segments that a kernel's socket would not take: nothing is learnt of them"),
    ("damaged", "wrong checksums where something would have been learnt: dropped"),
    ("syn_asked", "SYNs in the middle of a session, answered with an ACK"),
    ("syn_dropped", "likewise, too soon after another"),
    ("syn_new", "new connections that use the addresses of one that has ended"),
    ("resets", "resets that end a session"),
    ("reset_undone", "resets that the other side did not believe"),
    ("own_resets_dropped", "resets by which the kernel answers for connections that it no longer knows"),
    ("own_raised", "segments of our own sockets that say the newest of what was translated"),
    ("stale_copies", "copies for sockets that are closed, or with a mark that another program at tc gave them"),
    ("beyond_edge", "segments of more than the other side takes"),
    ("own_held", "segments of our own sockets that offer no more than the other side takes"),
    ("own_resets", "resets of our own sockets after the cut, by the number that the peer expects"),
    ("errors_translated", "ICMP errors about translated segments, passed on to the segment's sender"),
    ("errors_dropped", "ICMP errors about segments that are not under way: made up, or late"),
    ("too_long", "segments that are too long for the other side's device: answered as a router does"),
    ("failed", "the kernel failed to do something: TCP sends again"),
];
