// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The functions of fmt, compiled once: header-only they would be compiled, at 4 to 7 seconds, by every file that
// formats a message. cmake/ConclaveFmt.cmake decides whether this file is used, and in which namespace.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// What fmt's headers declare and leave to its library, for char; wide characters are not used here.
template dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;
template thousands_sep_result<char> thousands_sep_impl(locale_ref);
template char decimal_point_impl(locale_ref);
template locale_ref::locale_ref(const std::locale&);
template std::locale locale_ref::get<std::locale>() const;
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, basic_string_view<char>,
                         basic_format_args<basic_format_context<appender, char>>, locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
