/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Clients that are banned for a time (`truepeer ban`). A client is looked up once for each connection, and
 * once for each UDP flow after a ban was set (the edition of the rules changes then). src/bans.rs ends open
 * connections. */
#pragma once
#include "attach/maps.h"

struct ban {
	__u64 until_ns;     /* since the boot: the latest end of this ban and those around it; 0: none */
	__u64 own_until_ns; /* of this one; no program reads it, nor the rest */
	__u32 since_s;      /* since 1970 */
	__u32 by;
	__u8 why[32];
};

/* Which bans there may be: settings.bans. Those for one port are the same two, shifted. */
enum bans { BANNED_HOSTS = 1, BANNED_PREFIXES = 2 };
#define BANS_AT_PORT 2

_Static_assert(sizeof(struct ban) == 56, "src/bans.rs");

/* Single addresses. */
TABLE(tp_banned, LPM_TRIE, 1048576, struct ban_prefix, struct ban, BPF_F_NO_PREALLOC);

/* All other prefixes. */
TABLE(tp_bans, LPM_TRIE, 1048576, struct ban_prefix, struct ban, BPF_F_NO_PREALLOC);

/* Bits of a block that each single address sets (a Bloom filter): of 100,000 addresses a look-up in tp_banned
 * takes 700 ns, and this keeps nearly all clients from it. A hash table would be larger: 2 MB in each network
 * namespace. A removal leaves bits behind, until truepeer writes the blocks anew. */
#define BAN_BLOCKS 2048
#define BAN_BITS 3

struct ban_block {
	__u64 word[8];
};

TABLE(tp_ban_blocks, ARRAY, BAN_BLOCKS, __u32, struct ban_block, 0);

/* src/bans/tables.rs has it, too. */
static __always_inline __u64 hash_of(const struct ban_key *key)
{
	__u64 hash = key->port;

	for (int i = 0; i < 4; i++) {
		hash = (hash ^ key->client.word[i]) * 0x9e3779b97f4a7c15;
		hash ^= hash >> 32;
	}
	return hash;
}

static __always_inline int may_be_banned(const struct ban_key *key)
{
	__u64 hash = hash_of(key);
	__u32 at = hash % BAN_BLOCKS;
	struct ban_block *block = bpf_map_lookup_elem(&tp_ban_blocks, &at);

	if (!block)
		return 0;
	for (int i = 0; i < BAN_BITS; i++) {
		__u32 bit = hash >> (11 + 9 * i) & 511;
		if (!(block->word[bit / 64] >> bit % 64 & 1))
			return 0;
	}
	return 1;
}

static __always_inline int is_in_force(const struct ban *ban)
{
	return ban && (!ban->until_ns || ban->until_ns > bpf_ktime_get_boot_ns());
}

static __always_inline int is_banned_from(const struct address *client, __u32 port, __u32 bans)
{
	struct ban_prefix host = { .bits = 160, .key = { .port = port, .client = *client } };

	if (bans & BANNED_HOSTS && may_be_banned(&host.key) &&
	    is_in_force(bpf_map_lookup_elem(&tp_banned, &host)))
		return 1;
	return bans & BANNED_PREFIXES && is_in_force(bpf_map_lookup_elem(&tp_bans, &host));
}

/* Under 64:ff9b::/96, the well-known NAT64 prefix, a client is its IPv4 address, as in the process's own
 * bans. */
static __always_inline struct address without_nat64(const struct address *client)
{
	struct address plain = *client;

	if (plain.word[0] == bpf_htonl(0x64ff9b) && !plain.word[1] && !plain.word[2])
		map_ipv4(&plain, plain.word[3]);
	return plain;
}

GLOBAL int is_banned(const struct address *client, __u32 port)
{
	if (!client)
		return 0;
	struct settings *settings = settings_here();
	__u32 bans = settings ? settings->bans : 0;
	__u32 at_port = bans >> BANS_AT_PORT;

	if (!bans)
		return 0;
	struct address plain = without_nat64(client);

	bans &= BANNED_HOSTS | BANNED_PREFIXES;
	return (bans && is_banned_from(&plain, 0, bans)) || (at_port && is_banned_from(&plain, port, at_port));
}
