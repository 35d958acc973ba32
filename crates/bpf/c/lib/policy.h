/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The lists of the policy: who may send, who may be claimed, who is refused. */
#pragma once
#include "lib/base.h"

/* The attachments that a network namespace can have. Each has its own ports, lists and times. A list's
 * value has two bits for each. */
#define MAX_GROUPS 16

enum rule { RULE_REQUIRE = 1, RULE_OPTIONAL = 2 };
enum claim { CLAIM_REFUSED = 1, CLAIM_ALLOWED = 2 };

/* In the values of these three tables, two bits belong to each attachment (of_group). src/groups.rs puts the
 * lists of all attachments together. */

/* The senders: enum rule. Packets of all others pass unchanged. */
TABLE(tp_senders, LPM_TRIE, 65536, struct prefix, __u32, BPF_F_NO_PREALLOC);

/* Addresses that must not be claimed, and the exceptions: enum claim. */
TABLE(tp_claims, LPM_TRIE, 65536, struct prefix, __u32, BPF_F_NO_PREALLOC);

/* Clients that are refused. */
TABLE(tp_denied, LPM_TRIE, 1048576, struct prefix, __u32, BPF_F_NO_PREALLOC);

static __always_inline struct prefix host(const struct address *address)
{
	return (struct prefix){ .bits = 128, .address = *address };
}

static __always_inline __u32 of_group(__u32 values, __u8 group)
{
	return values >> (group % MAX_GROUPS * 2) & 3;
}

/* The sender's rules in all attachments; 0: none lists it. */
static __always_inline __u32 sender_rules(const struct address *sender)
{
	struct prefix key = host(sender);
	__u32 *rules = bpf_map_lookup_elem(&tp_senders, &key);
	return rules ? *rules : 0;
}

/* The sender's enum rule; 0: it is not listed. */
static __always_inline __u32 sender_rule(const struct address *sender, __u8 group)
{
	return of_group(sender_rules(sender), group);
}

static __always_inline int is_denied(const struct prefix *client, __u8 group)
{
	__u32 *denied = bpf_map_lookup_elem(&tp_denied, client);
	return denied && of_group(*denied, group);
}

static __always_inline int is_claim_refused(const struct prefix *client, __u8 group)
{
	__u32 *claim = bpf_map_lookup_elem(&tp_claims, client);
	return claim && of_group(*claim, group) == CLAIM_REFUSED;
}
