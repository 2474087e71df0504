// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a registry. Out: the report of every section.
#include "conclave/verify.hpp"

#include "verify/sections.hpp"

namespace conclave {

VerifyReport verify(const Registry& registry, const DeviceFacts& device, Stream stream, const VerifyOptions& options) {
  VerifyReport report;
  verify_detail::Reporter reporter(report, options);
  const std::unique_ptr<Executor> one = make_inline_executor();
  const std::unique_ptr<Executor> two = make_executor(2);
  verify_detail::Session session{registry, device, stream, Stream::cpu(*one), Stream::cpu(*two), options, reporter};
  verify_detail::verify_routers(session);
  verify_detail::verify_kernels(session);
  verify_detail::verify_layers(session);
  // Simulated ranks are threads of this process, and the parts on a GPU know one rank.
  if (stream.device.type == DeviceType::cpu) {
    verify_detail::verify_ranks(session);
    verify_detail::verify_layers_over_ranks(session);
  }
  verify_detail::verify_flipped_fields(session);
  return report;
}

}  // namespace conclave
