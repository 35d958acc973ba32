/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* SYN cookies: a flood of SYNs costs no memory. Our sequence number is the cookie, and our timestamp, which
 * the sender echoes, holds the options that were agreed on. SipHash-2-4 keeps both unpredictable (RFC 6528,
 * RFC 4987).
 *
 *   sequence number  16 bits: the connection    16 bits: the connection, the sender's number, its device, the
 * options, the minute timestamp        milliseconds, whose lowest 7 bits are the options: 4 the sender's
 * window scale, 3 its segment size
 *
 * The first half shows that a segment belongs to such a handshake, even if the segment before it was lost.
 * Only the whole number proves the sender's address, and where its stream begins. */
#pragma once
#include "offload/full_layout.h"
#include "offload/validate.h"

const volatile __u64 full_secret[2] = { 0x0706050403020100, 0x0f0e0d0c0b0a0908 };

#define OPTION_BITS 7
#define OPTION_MASK ((1 << OPTION_BITS) - 1)
/* Our window scale. */
#define OWN_SCALE 7

struct sip_input {
	__u64 words[6];
	__u64 count; /* of words that are hashed: 3 or 6 */
};

static __always_inline __u64 rotate(__u64 word, __u32 bits)
{
	return word << bits | word >> (64 - bits);
}

#define SIP_ROUND                                                                 \
	do {                                                                      \
		a += b, b = rotate(b, 13), b ^= a, a = rotate(a, 32);             \
		c += d, d = rotate(d, 16), d ^= c;                                \
		a += d, d = rotate(d, 21), d ^= a;                                \
		c += b, b = rotate(b, 17), b ^= c, c = rotate(c, 32);             \
	} while (0)

GLOBAL __u64 siphash(const struct sip_input *input)
{
	if (!input)
		return 0;
	__u64 a = 0x736f6d6570736575ULL ^ full_secret[0], b = 0x646f72616e646f6dULL ^ full_secret[1];
	__u64 c = 0x6c7967656e657261ULL ^ full_secret[0], d = 0x7465646279746573ULL ^ full_secret[1];
	__u64 count = input->count;

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < 6; i++) {
		if (i == 3 && count == 3)
			break;
		d ^= input->words[i];
		SIP_ROUND;
		SIP_ROUND;
		a ^= input->words[i];
	}
	d ^= count << 59; /* its length in bytes, in the uppermost 8 bits */
	SIP_ROUND;
	SIP_ROUND;
	a ^= count << 59;
	c ^= 0xff;
	SIP_ROUND;
	SIP_ROUND;
	SIP_ROUND;
	SIP_ROUND;
	return a ^ b ^ c ^ d;
}

/* A number for each purpose, so that no hash serves for two. */
enum purpose { CONNECTION = 1, HANDSHAKE, OUR_CLOCK, OUR_NUMBER };

/* `is`: the purpose in the lowest 8 bits, and up to 24 bits of input above them. IPv4 takes 3 words instead
 * of 6; the number of words is hashed too. */
static __always_inline __u64 hash_of(const struct flow_key *key, __u32 is, __u32 one, __u32 two)
{
	struct sip_input input = {};
	__u64 ports = (__u32)key->remote_port << 16 | key->local_port;

	if (is_ipv4(&key->remote) && is_ipv4(&key->local)) {
		input.words[0] = (__u64)key->remote.word[3] << 32 | key->local.word[3];
		input.words[1] = ports << 32 | is;
		input.words[2] = (__u64)one << 32 | two;
		input.count = 3;
	} else {
		__builtin_memcpy(input.words, key, 2 * sizeof(struct address));
		input.words[4] = ports << 32 | is;
		input.words[5] = (__u64)one << 32 | two;
		input.count = 6;
	}
	return siphash(&input);
}

/* The cookie covers these fields too, beside addresses, ports and sequence numbers: the segment with the
 * header must have the values of the SYN. */
struct agreed_on {
	__u32 device;  /* that the SYN came by */
	__u32 options; /* as in our timestamp */
};

static __always_inline __u32 first_half(const struct flow_key *key)
{
	return (__u32)hash_of(key, CONNECTION, 0, 0) << 16;
}

static __always_inline __u32 second_half(const struct flow_key *key, const struct agreed_on *agreed,
					 __u32 isn, __u32 minute)
{
	return hash_of(key, HANDSHAKE | (minute & 0xffffff) << 8, isn,
		       agreed->device << OPTION_BITS | agreed->options) &
	       0xffff;
}

/* A minute has 69 seconds (2^36 ns). `now`: nanoseconds of the monotonic clock; it is an argument because
 * reading it is slow. */
static __always_inline __u32 minute_at(__u64 now)
{
	return now >> 36;
}

static __always_inline __u32 cookie_of(const struct flow_key *key, const struct agreed_on *agreed, __u32 isn,
				       __u64 now)
{
	return first_half(key) | second_half(key, agreed, isn, minute_at(now));
}

/* The segment acknowledges one of our SYN-ACKs, whichever SYN that answered. */
static __always_inline int is_of_our_handshake(const struct flow_key *key, __u32 ack)
{
	return ((ack - 1) & 0xffff0000) == first_half(key);
}

/* Call only if is_of_our_handshake(). This checks the other half: the stream begins behind `isn`. */
static __always_inline int is_our_cookie(const struct flow_key *key, const struct agreed_on *agreed,
					 __u32 ack, __u32 isn, __u64 now)
{
	__u32 minute = minute_at(now), half = (ack - 1) & 0xffff;

	return half == second_half(key, agreed, isn, minute) || half == second_half(key, agreed, isn, minute - 1);
}

/* Our clock towards a peer: it goes on over all connections of the two hosts, as PAWS wants. */
static __always_inline __u32 clock_towards(const struct address *from, const struct address *to, __u64 now)
{
	struct flow_key hosts = { .remote = *to, .local = *from };

	return (__u32)(now / 1000000) + (__u32)hash_of(&hosts, OUR_CLOCK, 0, 0);
}

/* A cookie is good for this minute and the one before it. */
#define COOKIE_LIFE_MS 138000

/* The echo is of `clock`, ours towards this sender, and no older than the cookie. Nobody else knows that
 * clock, so the echo adds 15 bits to the cookie's 32. */
static __always_inline int is_echo_of_ours(__u32 clock, __u32 echo)
{
	return (clock & ~OPTION_MASK) - (echo & ~OPTION_MASK) <= COOKIE_LIFE_MS;
}

/* The echo is of our clock, but older than a cookie may be. */
static __always_inline int is_echo_too_old(__u32 clock, __u32 echo)
{
	__u32 age = (clock & ~OPTION_MASK) - (echo & ~OPTION_MASK);

	return age > COOKIE_LIFE_MS && age < 1U << 31;
}

/* The timestamp with the options in its lowest bits, never ahead of the clock. */
static __always_inline __u32 clock_with_options(__u32 clock, __u32 options)
{
	__u32 with = (clock & ~OPTION_MASK) | options;

	return is_before(clock, with) ? with - (1 << OPTION_BITS) : with;
}

/* RFC 6528: a secret hash plus a clock of 64 ns, as Linux does. */
static __always_inline __u32 number_towards(const struct flow_key *key, __u64 now)
{
	return (__u32)hash_of(key, OUR_NUMBER, 0, 0) + (__u32)(now >> 6);
}

static __always_inline __u16 mss_of_class(__u32 class)
{
	switch (class & 7) {
	case 1:
		return 1200;
	case 2:
		return 1360;
	case 3:
		return 1380;
	case 4:
		return 1440;
	case 5:
		return 1460;
	case 6:
		return 8940;
	case 7:
		return 65476; /* loopback, IPv6 */
	}
	return 536;
}

/* The highest class that is not above `mss`. */
static __always_inline __u32 class_of_mss(__u32 mss)
{
	for (__u32 class = 7; class > 0; class--)
		if (mss_of_class(class) <= mss)
			return class;
	return 0;
}

static __always_inline __u32 options_of(__u8 scale, __u32 mss)
{
	return (scale & 15) | class_of_mss(mss) << 4;
}
