-- Health of a ServingPool from its condition Ready: True is Healthy; False, which the operator sets only for
-- what a person must mend, is Degraded; anything else is Progressing.
-- A pool of no replicas is Suspended, unless autoscaling sets them and they are ignored.
-- A missed objective and a fallback that serves are told, and degrade nothing: no sync is to fail for the
-- load of the hour.
local hs = { status = "Progressing", message = "Waiting for the operator" }

if obj.metadata.deletionTimestamp ~= nil then
  hs.message = "Being deleted"
  if obj.metadata.finalizers ~= nil and #obj.metadata.finalizers > 0 then
    hs.message = "Being deleted; held by " .. table.concat(obj.metadata.finalizers, ", ")
  end
  return hs
end

if obj.status == nil or obj.status.conditions == nil then
  return hs
end

local ready = nil
local notes = ""
for _, condition in ipairs(obj.status.conditions) do
  if condition.type == "Ready" then
    ready = condition
  elseif (condition.type == "SLOMet" and condition.status == "False")
    or (condition.type == "Fallback" and condition.status == "True")
  then
    notes = notes .. "; " .. condition.message
  end
end

-- Seeded conditions and those of an older spec say nothing about this one.
local generation = obj.metadata.generation
if ready == nil or obj.status.observedGeneration ~= generation then
  return hs
end
if ready.observedGeneration ~= nil and ready.observedGeneration ~= generation then
  return hs
end

hs.message = ready.message .. notes
local none = obj.spec.replicas == 0 and obj.spec.autoscaling == nil
if none and (ready.status ~= "False" or ready.reason == "ScaledToZero") then
  hs.status = "Suspended"
  return hs
end
if ready.status == "True" then
  hs.status = "Healthy"
elseif ready.status == "False" then
  hs.status = "Degraded"
end
return hs
