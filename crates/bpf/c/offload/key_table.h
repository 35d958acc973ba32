/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A hash table from a connection's addresses to its place. A slot holds the place and a part of the key's
 * hash; the key itself is at the place. truepeer maps the tables and changes them in the same way
 * (src/splice/keys.rs). A look-up reads two cache lines and calls no function of the kernel, and a change is
 * one exchange: in the kernel's hash tables each takes from 100 ns to more than a microsecond. */
#pragma once
#include "attach/layout.h"

#define KEY_WAYS 16
/* The lower bits of a slot are a place and a side, the others a part of the hash. */
#define SLOT_BITS 17
#define SLOT_MASK ((1U << SLOT_BITS) - 1)

/* A cache line. */
struct key_bucket {
	__u32 slots[KEY_WAYS]; /* 0: free */
};

/* Random, written by the process that makes the tables. Multilinear hashing: two keys, even chosen by an
 * attacker, have the same hash with a probability of 2^-32, because no packet reveals a hash. */
struct key_secret {
	__u64 words[10];
	__u32 last_bucket; /* of ts_keys, whose number of buckets is a power of two */
	__u32 unused;
};

_Static_assert(sizeof(struct key_bucket) == 64 && sizeof(struct key_secret) == 88, "src/splice/keys.rs");

TABLE(ts_secret, ARRAY, 1, __u32, struct key_secret, 0);

static __always_inline const struct key_secret *key_secret(void)
{
	return ONLY_ENTRY(ts_secret);
}

static __always_inline __u32 hash_of_key(const struct flow_key *key, const struct key_secret *secret)
{
	const __u32 *words = (const __u32 *)key;
	__u64 sum = secret->words[9];

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < sizeof(*key) / sizeof(*words); i++)
		sum += secret->words[i] * words[i];
	return sum >> 32;
}

/* Never 0. */
static __always_inline __u32 slot_of(__u32 hash, __u32 bits)
{
	return ((hash | 1U << SLOT_BITS) & ~SLOT_MASK) | bits;
}

static __always_inline __u32 slot_at(const struct key_bucket *bucket, __u32 at)
{
	return *(const volatile __u32 *)&bucket->slots[at];
}

/* The key of a connection, by the lower bits of its slot; NULL: none. */
typedef const struct flow_key *key_at(__u32 bits);

/* The slot of a connection with this key, other than `own`; 0: there is none. */
static __always_inline __u32 find_slot(const struct key_bucket *bucket, __u32 hash,
				       const struct flow_key *key, key_at *key_of, __u32 own)
{
	__u32 want = slot_of(hash, 0);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < KEY_WAYS; i++) {
		__u32 slot = slot_at(bucket, i);

		if ((slot ^ want) >> SLOT_BITS || slot == own)
			continue;
		const struct flow_key *found = key_of(slot & SLOT_MASK);
		if (found && is_same_key(found, key))
			return slot;
	}
	return 0;
}

static __always_inline void free_slot(struct key_bucket *bucket, __u32 slot)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < KEY_WAYS; i++)
		if (slot_at(bucket, i) == slot)
			__sync_val_compare_and_swap(&bucket->slots[i], slot, 0);
}

/* Why a key was not entered. */
#define KEY_TAKEN (-1) /* another connection has it; of two that come at once both may be told so */
#define NO_ROOM (-2)   /* no slot is free where it belongs */

static __always_inline int take_slot(struct key_bucket *bucket, __u32 hash, const struct flow_key *key,
				     key_at *key_of, __u32 bits)
{
	__u32 own = slot_of(hash, bits), i = 0;

#pragma clang loop unroll(disable)
	for (; i < KEY_WAYS; i++)
		if (!slot_at(bucket, i) && __sync_val_compare_and_swap(&bucket->slots[i], 0, own) == 0)
			break;
	if (i == KEY_WAYS)
		return NO_ROOM;
	/* Look for the key only after storing the slot. Of two CPUs that enter the same key at once, at least
	 * one sees the other. */
	if (!find_slot(bucket, hash, key, key_of, own))
		return 0;
	free_slot(bucket, own);
	return KEY_TAKEN;
}

/* The functions of one table. `bucket_in` is its map, `mask_of(secret)` the number of its last bucket,
 * `key_of` a key_at. SLOT(key): its slot; 0: there is none. ENTER(key, bits): the key stands in its
 * connection already; KEY_TAKEN, NO_ROOM. REMOVE(key, bits). */
#define KEY_TABLE(SLOT, ENTER, REMOVE, bucket_in, mask_of, key_of)                                        \
	static __always_inline struct key_bucket *SLOT##_bucket(const struct flow_key *key, __u32 *hash) \
	{                                                                                                 \
		const struct key_secret *secret = key_secret();                                           \
                                                                                                          \
		if (!key || !secret)                                                                      \
			return 0;                                                                         \
		*hash = hash_of_key(key, secret);                                                         \
		__u32 at = *hash & mask_of(secret);                                                       \
		return bpf_map_lookup_elem(&bucket_in, &at);                                              \
	}                                                                                                 \
                                                                                                          \
	GLOBAL __u32 SLOT(const struct flow_key *key)                                                     \
	{                                                                                                 \
		__u32 hash = 0;                                                                           \
		struct key_bucket *bucket = SLOT##_bucket(key, &hash);                                    \
                                                                                                          \
		return bucket && key ? find_slot(bucket, hash, key, key_of, 0) : 0;                       \
	}                                                                                                 \
                                                                                                          \
	GLOBAL int ENTER(const struct flow_key *key, __u32 bits)                                          \
	{                                                                                                 \
		__u32 hash = 0;                                                                           \
		struct key_bucket *bucket = SLOT##_bucket(key, &hash);                                    \
                                                                                                          \
		return bucket && key ? take_slot(bucket, hash, key, key_of, bits & SLOT_MASK) : NO_ROOM;  \
	}                                                                                                 \
                                                                                                          \
	GLOBAL int REMOVE(const struct flow_key *key, __u32 bits)                                         \
	{                                                                                                 \
		__u32 hash = 0;                                                                           \
		struct key_bucket *bucket = SLOT##_bucket(key, &hash);                                    \
                                                                                                          \
		if (bucket)                                                                               \
			free_slot(bucket, slot_of(hash, bits & SLOT_MASK));                               \
		return 0;                                                                                 \
	}
